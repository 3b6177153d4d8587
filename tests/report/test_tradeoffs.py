"""What speed costs: the marks, the currency, and which of them no other one beats."""

from __future__ import annotations

import pytest

from src.report import page
from src.report import runs as study_runs
from src.report.study import merged_rows
from src.report.tradeoffs import front, tradeoffs
from src.report.verdict.prices import Prices, add_costs
from tests.report.conftest import Study
from tests.report.test_figures import axes, lines


def test_the_front_is_of_what_no_other_one_beats_in_both() -> None:
    # From the fastest down: (4, 8) is beaten by (5, 8), (3, 9) by all faster ones; (1, 5) by (2, 5).
    marks = [(1.0, 5.0), (2.0, 5.0), (3.0, 9.0), (4.0, 8.0), (5.0, 8.0), (4.5, 7.0)]
    assert front(marks, more=False) == [(5.0, 8.0), (4.5, 7.0), (2.0, 5.0)]
    assert front(marks, more=True) == [(5.0, 8.0), (3.0, 9.0)]
    assert front([(1.0, 2.0), (1.0, 1.0)], more=False) == [(1.0, 1.0)]


def test_cost_is_drawn_against_throughput_with_its_front(empty_study: Study) -> None:
    # At 3.60 an hour of a device: 1, 1.4 and 3.2 EUR for 1,000, 700 and 1,600 s of device time.
    empty_study.run("single", samples_per_second=1000.0, train_seconds=1000.0)
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=1500.0, train_seconds=700.0)
    empty_study.run("pipeline", "pipeline", workers=2, samples_per_second=600.0, train_seconds=1600.0)
    runs = study_runs.load(empty_study.cells, empty_study.directory / "runs")
    prices = Prices("EUR", "2026-11-01", "a list", {"cpu": 3.6})
    rows = add_costs(merged_rows({}, runs), prices)
    assert [row["cost"] for row in rows] == pytest.approx([1.0, 1.4, 3.2])
    drawing = tradeoffs(*page.picture(runs, rows))
    (axis,) = [axis for title, axis in axes(drawing).items() if title.endswith(": cost of training")]
    assert axis.get_ylabel() == "cost of training, EUR"
    assert lines(axis)["Pareto front"] == ([1500.0, 1000.0], pytest.approx([1.4, 1.0]))
    assert drawing is not None
    on_front = {row["run"]: row["on the front"] for row in drawing.numbers if "cost of training, EUR" in row}
    assert on_front == {"single, 1 w": "yes", "ddp, 2 w": "yes", "pipeline, 2 w": "no"}


def test_without_prices_nothing_costs(empty_study: Study) -> None:
    empty_study.run("single", samples_per_second=1000.0, train_seconds=1000.0)
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=1500.0, train_seconds=700.0)
    assert "cost of training" not in empty_study.page()

"""What the figures show, read back from their axes."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes

from src import aggregate
from src.report import canvas, figures, learning, page
from src.report import runs as study_runs
from tests.report.conftest import Study

Drawn = tuple[list[canvas.Point], dict[str, canvas.Look]]


@pytest.fixture
def drawn(study: Study) -> Iterator[Drawn]:
    """What the figures of the small study are drawn from."""
    runs = study_runs.load(study.cells, study.directory / "runs")
    yield page.picture(runs, aggregate.write({"name": "small"}, runs, study.directory))
    plt.close("all")


def lines(axis: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The named lines of an axis: their xs and ys."""
    named = {line.get_label(): line for line in axis.lines if not str(line.get_label()).startswith("_")}
    return {name: (list(line.get_xdata()), list(line.get_ydata())) for name, line in named.items()}


def test_strong_and_weak_runs_have_a_bar_and_a_name_each(drawn: Drawn) -> None:
    figure = figures.bars(*drawn, "samples_per_second", "samples/s")
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert {"ddp, 1 w", "ddp, 2 w", "ddp, 2 w, weak"} <= set(labels)
    widths = dict(zip(labels, (bar.get_width() for bar in figure.axes[0].patches), strict=True))
    assert (widths["ddp, 2 w"], widths["ddp, 2 w, weak"]) == (1800.0, 2000.0)


def test_both_speedups_begin_at_one_worker_beside_the_ideal_line(drawn: Drawn) -> None:
    found = lines(figures.speedups(*drawn).axes[0])
    assert found["ideal"] == ([1, 2], [1, 2])
    assert found["ddp"] == ([1, 2], pytest.approx([0.9, 1.8]))
    assert found["ddp, weak"] == ([1, 2], pytest.approx([0.9, 2.0]))


def test_learning_is_drawn_against_the_epoch(drawn: Drawn) -> None:
    accuracy, loss = learning.curves(*drawn).axes
    assert lines(accuracy)["ddp, 2 w, weak"] == ([1, 2], [0.9, 0.94])
    assert lines(loss)["ddp, 2 w"] == ([1, 2], [0.4, 0.25])

"""What DVC shows of a study: its figures, worked by hand, and its pictures."""

from __future__ import annotations

import json

import pytest

from src import aggregate
from src.report import summary
from tests.report.conftest import BAD, Study
from tests.report.test_comparison import rows_of
from tests.report.test_repeats import repeat


def test_figures_of_a_study_are_its_best_its_worst_and_its_sum(empty_study: Study) -> None:
    repeat(empty_study, "single", [100.0, 50.0, 100.0])
    repeat(empty_study, "ddp", [150.0, 80.0, 150.0], "ddp", 2)
    found = summary.metrics_of(rows_of(empty_study))
    # 100 seconds over the rate: 1, 2 and 1 of single, 2 / 3, 1.25 and 2 / 3 of ddp: 6.6 seconds.
    assert found.pop("hours") == 0.0018
    assert found == {"measured": 2, "failed": 0, "speedup": 1.5, "accuracy": 0.9, "parity_gap": 0.0}


def test_a_baseline_is_not_the_best_of_its_study(empty_study: Study) -> None:
    repeat(empty_study, "single", [100.0])
    assert summary.metrics_of(rows_of(empty_study))["speedup"] is None
    repeat(empty_study, "pipeline", [90.0], "pipeline", 2)
    assert summary.metrics_of(rows_of(empty_study))["speedup"] == 0.9


def test_failed_and_missing_runs_are_counted_and_of_no_figure(study: Study) -> None:
    found = summary.metrics_of(rows_of(study))
    # All but those, and the one that ran out of memory.
    assert found["failed"] == len(BAD)
    assert found["measured"] == len(study.cells) - len(BAD) - 1
    assert found["accuracy"] == 0.94


def test_aggregate_writes_figures_and_pictures_where_every_studys_are(study: Study) -> None:
    folder = study.params.parent / "summary"
    folder.mkdir()
    (folder / "old.png").touch()
    words = ["--params", str(study.params), "--study-dir", str(study.directory), "--summary", str(folder)]
    assert aggregate.main(words) == 1
    metrics = json.loads((folder / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert list(metrics) == ["measured", "failed", "speedup", "accuracy", "parity_gap", "hours"]
    pictures = {path.name: path.read_bytes()[:4] for path in folder.glob("*.png")}
    assert pictures == dict.fromkeys(("overview.png", "learning.png"), b"\x89PNG")


def test_a_study_without_a_run_has_figures_and_no_picture(empty_study: Study) -> None:
    empty_study.declare("gone", strategy="single", model="cnn", dataset="mnist")
    folder = empty_study.params.parent / "summary"
    words = ["--params", str(empty_study.params), "--study-dir", str(empty_study.directory)]
    assert aggregate.main([*words, "--summary", str(folder)]) == 1
    metrics = json.loads((folder / "metrics.json").read_text())
    assert (metrics["failed"], metrics["measured"], metrics["speedup"]) == (1, 0, None)
    assert list(folder.glob("*.png")) == []

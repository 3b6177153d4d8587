"""Scores over seeds: means, intervals and differences, on made-up runs."""

from __future__ import annotations

from typing import Any

import pytest

from src.report import seeds
from src.report import study as studies
from tests.report.conftest import Study

ONE, TWO = (0.90, 0.91, 0.905), (0.93, 0.945, 0.93)


def trained(study: Study, name: str, scores: tuple[float, ...], *args: Any, **keys: Any) -> None:
    for seed, score in enumerate(scores):
        figures = {"accuracy": score, "score": score, "train_seconds": 60.0, "metric": "accuracy"}
        study.run(f"{name}-{seed}", *args, seed=seed, **{**figures, **keys})


def rows(study: Study) -> list[dict[str, Any]]:
    whole = studies.read(study.params)
    return seeds.rows(studies.merged_rows(whole, studies.load(whole, study.directory)))


def test_a_mean_has_its_interval_and_its_difference_from_one_device(empty_study: Study) -> None:
    trained(empty_study, "single", ONE)
    trained(empty_study, "local", TWO, "local_sgd", workers=2, parity="averaged")
    single, local = rows(empty_study)
    assert (single["seeds"], single["score"]) == (3, pytest.approx(0.905))
    # 4.3027 standard errors of 0.005 / sqrt(3).
    assert single["score_low"] == pytest.approx(0.905 - 0.01242, abs=1e-5)
    assert single["difference"] is None
    # Differences of 0.030, 0.035 and 0.025: 0.030, with 4.3027 of 0.005 / sqrt(3) to either side.
    assert local["difference"] == pytest.approx(0.030)
    assert local["difference_low"] == pytest.approx(0.030 - 0.01242, abs=1e-5)
    assert local["word"] == "told apart" and local["among"] == 2


def test_another_rate_is_another_training(empty_study: Study) -> None:
    trained(empty_study, "single", ONE)
    trained(empty_study, "fast", TWO, optimizer={"lr": 0.1})
    assert [row["difference"] for row in rows(empty_study)] == [None, None]


def test_micro_batches_are_held_against_whole_batches(empty_study: Study) -> None:
    trained(empty_study, "parts", TWO, microbatches=4)
    trained(empty_study, "single", ONE)
    found = {row["label"]: row for row in rows(empty_study)}
    parts = next(row for label, row in found.items() if "microbatches" in label)
    assert parts["difference"] == pytest.approx(0.030)
    assert sum(row["difference"] is not None for row in found.values()) == 1


def test_what_was_stopped_before_its_end_has_no_score(empty_study: Study) -> None:
    trained(empty_study, "single", ONE)
    trained(empty_study, "late", TWO, "ddp", workers=2, status="time_limit")
    trained(empty_study, "early", TWO, "mpi", workers=2)
    for seed in range(3):
        config = empty_study.directory / "runs" / f"early-{seed}" / "config.yaml"
        config.write_text(config.read_text() + "target_accuracy: 0.9\nstop_at_target: true\n")
    assert [row["label"] for row in rows(empty_study)] == ["single"]


def test_one_seed_is_no_spread(empty_study: Study) -> None:
    trained(empty_study, "single", ONE[:1])
    whole = studies.read(empty_study.params)
    every = studies.merged_rows(whole, studies.load(whole, empty_study.directory))
    assert seeds.rows(every) == [] and seeds.view(every) == []


def test_the_page_has_a_table_of_it(empty_study: Study) -> None:
    trained(empty_study, "single", ONE)
    trained(empty_study, "local", TWO, "local_sgd", workers=2, parity="averaged")
    whole = studies.read(empty_study.params)
    (view,) = seeds.view(studies.merged_rows(whole, studies.load(whole, empty_study.directory)))
    assert view.rows[1][1][-4:] == ["+3.00", "+1.76", "+4.24", "told apart"]
    assert "these intervals hold for all 2 of a training at once" in view.notes[0]

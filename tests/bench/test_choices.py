"""What choices by predictions lose, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench import choices, study_steps
from bench.choices import places, regret
from src.config import command_line, compose
from tests.support import config


def test_a_choice_loses_what_it_takes_longer_than_the_best() -> None:
    # The first choice takes 12 where 10 would do; the third one is the best.
    assert regret([1.0, 2.0, 3.0, 4.0], [12.0, 11.0, 10.0, 20.0], [0.0] * 4) == pytest.approx((0.2, 0.0))
    # Of the first three none is the best.
    assert regret([4.0, 1.0, 2.0, 3.0], [10.0, 12.0, 15.0, 11.0], [0.0] * 4) == pytest.approx((0.2, 0.1))


def test_what_repetitions_do_not_tell_apart_is_no_loss() -> None:
    assert regret([1.0, 2.0], [10.5, 10.0], [0.3, 0.2]) == (0.0, 0.0)
    assert regret([1.0, 2.0], [10.6, 10.0], [0.3, 0.2])[0] == pytest.approx(0.06)


def test_a_place_has_as_many_ways_as_are_asked_for() -> None:
    found = places([1, 4, 7, 2, 5, 3], lambda number: number % 3, 2)  # type: ignore[type-var]
    assert found == {1: [1, 4, 7], 2: [2, 5]}


def test_ways_do_the_same_work_with_the_same_samples_of_the_same_model() -> None:
    few = ("model=cnn", "dataset=mnist", "batch=64")
    works = {
        words: choices.work_of(config(*few, *words))
        for words in [
            ("strategy=single",),
            ("strategy=ddp", "workers=2"),
            ("strategy=ddp", "workers=2", "scaling=weak", "batch=32"),
            ("dataset=fashion_mnist",),
            ("dataset.limit=640",),
            ("optimizer.name=adam",),
            ("optimizer.clip_norm=1",),
            ("hardware.cores_per_device=2",),
            ("strategy=tf_single",),
            ("hardware.speeds=[0.5]",),
        ]
    }
    alike = [words for words, work in works.items() if work == works["strategy=single",]]
    assert alike == [*list(works)[:3], ("dataset.limit=640",)]


@pytest.mark.parametrize(("seconds", "least"), [(0.5, study_steps.STEPS), (0.01, 300)])
def test_a_study_s_steps_are_few_and_each_is_taken_once(seconds: float, least: int) -> None:
    # Each has three seeds in the study.
    found = study_steps.chosen("mirrored_scaling")
    assert len(found) == 5
    for words, whole in found:
        (few,) = compose.cells(command_line.parse([*words, *study_steps.few_steps(whole, seconds)]))
        steps = few.dataset["limit"] * few.epochs / few.global_batch
        # A large batch is taken from few samples, several times.
        assert few.dataset["limit"] == study_steps.SAMPLES and least <= steps < least + 2
        assert choices.work_of(few) == choices.work_of(whole)


def test_of_many_places_and_ways_some_are_drawn_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        ["model=mlp", "dataset=mnist", f"batch={batch}", *strategy]
        for batch in (32, 64, 128)
        for strategy in (["strategy=single"], *(["workers=2", f"strategy={s}"] for s in ("ddp", "mpi")))
    ]
    made = [(each, config(*each)) for each in words]
    made = [
        (each, replace(cell, hardware=replace(cell.hardware, share_devices=False))) for each, cell in made
    ]
    monkeypatch.setattr(study_steps, "cells", lambda study: iter(made))
    every = places_of(study_steps.chosen("study", 3, 3))
    assert [len(ways) for ways in every.values()] == [3, 3, 3]
    assert places_of(study_steps.chosen("study")) == every
    found = {count: places_of(study_steps.chosen("study", count, 2)) for count in (1, 2, 3)}
    for count, drawn in found.items():
        assert len(drawn) == count and places_of(study_steps.chosen("study", count, 2)) == drawn
        for place, ways in drawn.items():
            # Further places leave the ways at others as they were.
            assert ways == found[3][place] and len(ways) == 2
            assert all(way in every[place] for way in ways)


def places_of(cells: Sequence[study_steps.Cell]) -> dict[object, list[list[str]]]:
    found: dict[object, list[list[str]]] = {}
    for words, cell in cells:
        found.setdefault(choices.work_of(cell), []).append(words)
    return found


@pytest.mark.parametrize("words", [("--places", "0"), ("--ways", "1")])
def test_of_one_way_nothing_is_chosen(
    words: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["study_steps", "folder", "quick", *words])
    with pytest.raises(SystemExit):
        study_steps.main()
    assert f"{' '.join(words)}: must be" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_s_steps_are_measured_once_and_choices_are_held_against_them(
    mnist: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two = [cell for cell in study_steps.chosen("quick") if cell[1].strategy["name"] in ("single", "ddp")]
    monkeypatch.setattr(study_steps, "ROUNDS", 1)
    monkeypatch.setattr(study_steps, "SECONDS", 0.1)
    study_steps.measure(tmp_path, two)
    assert capsys.readouterr().out.count("round 1 of 1") == 2
    ended = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/metrics.json")}
    study_steps.measure(tmp_path, two)
    assert "round" not in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in ended} == ended and len(ended) == 2
    choices.of_runs(tmp_path, [tmp_path / "runs"])
    told = capsys.readouterr().out
    assert "2 ways; chosen" in told and "\n1 places; regret of the first choice" in told

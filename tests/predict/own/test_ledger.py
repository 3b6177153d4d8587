"""The ledger of predictions: nothing is removed, and what came is added once."""

from __future__ import annotations

from pathlib import Path

import pytest

from src.config import ConfigError
from src.predict import ledger
from src.predict.ledger import Entry


def entry(signature: str, predicted: float = 0.1, kind: str = "ddp") -> Entry:
    return Entry("predict", kind, f"ddp-{signature}", signature, "seconds", "measured", predicted, 0.09, 0.11)


def test_what_comes_later_answers_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "predictions.csv"
    assert ledger.read(path) == []
    # A run that ended before the prediction was made is no answer.
    (first,) = ledger.add([entry("a")], {"a": [(1.0, 0.2, "runs/old")]}, path)
    assert first.came is None and first.predicted_at > 1e9
    later = first.predicted_at + 10
    answers = {"a": [(later + 5, 0.5, "runs/again"), (later, 0.08, "runs/a"), (1.0, 0.2, "runs/old")]}
    first, second = ledger.add([entry("b", kind="fsdp")], answers, path)
    assert (first.came, first.came_at, first.run) == (0.08, later, "runs/a")
    assert first.error == pytest.approx(0.25) and second.came is None
    # Its folder is gone, or another run is there: what is known stays.
    for found in ({}, {"a": [(later + 9, 0.7, "runs/new")]}):
        first, _ = ledger.add([], found, path)
        assert (first.came, first.run) == (0.08, "runs/a")
    assert ledger.read(path) == [first, second]


def test_errors_are_told_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "predictions.csv"
    made = ledger.add([entry("a"), entry("b", 0.21), entry("c", 1.0, "fsdp")], {}, path)
    later = made[0].predicted_at + 1
    answers = {name: [(later, 0.2, "runs/x")] for name in "ab"}
    every = ledger.add([], answers, path)
    assert ledger.so_far(every, "ddp") == "2 of its kind: median 27.5 %, worst 50 %"
    assert ledger.so_far(every, "fsdp") == "none of its kind has been run"


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "predicted_at,command\n"])
def test_another_file_of_that_name_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "predictions.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match="isn't the ledger"):
        ledger.add([entry("a")], {}, path)
    assert path.read_text() == text


def test_a_line_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "predictions.csv"
    ledger.add([entry("a")], {}, path)
    path.write_text(path.read_text().replace("0.09", "low"))
    with pytest.raises(ConfigError, match="has a line that can't be read"):
        ledger.read(path)

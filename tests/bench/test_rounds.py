"""Rounds in which a run was disturbed are run again, a few of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import runs
from bench.rounds import Rounds, collect


def measured(disturbed: Sequence[bool], rounds: Rounds, count: int) -> list[int]:
    """The attempts, numbered from 0, that count; `disturbed` says of each whether a run in it was."""
    attempts = iter(enumerate(disturbed))

    def measure(number: int) -> int:
        attempt, was_disturbed = next(attempts)
        if was_disturbed:
            runs.DISTURBED.append("ddp: disturbed")
        return attempt

    return rounds.run(count, measure)


def test_a_disturbed_round_is_run_again_and_its_figures_are_dropped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = Rounds()
    assert measured([False, True, True, False, False], rounds, 3) == [0, 3, 4]
    assert rounds.note() == "2 round(s) were repeated because a run was disturbed."
    assert capsys.readouterr().err == "round 2 is repeated: ddp: disturbed\n" * 2


def test_no_more_than_three_are_repeated_in_all() -> None:
    rounds = Rounds()
    assert measured([True, True, False], rounds, 1) == [2]
    # Of the next model's rounds one more may be.
    assert measured([True, True, True], rounds, 2) == [1, 2]
    assert (rounds.repeated, rounds.kept) == (3, 2)
    assert rounds.note().endswith("; 2 further one(s) count all the same.")


def test_rounds_are_collected_by_name() -> None:
    assert collect([{"a": 1, "b": 2}, {"b": 4, "a": 3}]) == {"a": [1, 3], "b": [2, 4]}


@pytest.mark.parametrize(("waited", "noted"), [(0.2, 1), (0.04, 0), (None, 0)])
def test_a_run_says_that_it_was_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: float | None, noted: int
) -> None:
    metrics: dict[str, Any] = {"cpu_wait_fraction": waited, "steal_fraction": 0.0}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    runs.DISTURBED.clear()
    monkeypatch.setattr(runs, "run_command", lambda *_, **__: "")
    assert runs.train("strategy=ddp", out=tmp_path, cores={0}) == metrics
    assert len(runs.DISTURBED) == noted

"""A killed process of each kind costs what it should, and no more; `bench.recovery` has more trials."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.recovery import KINDS, STEPS, problems, trial


@pytest.mark.parametrize("name", KINDS)
def test_a_job_outlives_the_kill_of(
    name: str, tmp_path: Path, mnist: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A cap on a test run's minutes would end the training early.
    monkeypatch.delenv("SCALEGUIDE_MAX_MINUTES", raising=False)
    kind = KINDS[name]
    undisturbed = trial(kind, tmp_path / "run", kill_after=None) if "multiworker" in name else None
    if undisturbed is not None:
        assert undisturbed.code == 0, undisturbed.said
    done = trial(kind, tmp_path / "run", kill_after=random.randrange(10, STEPS // 3))
    assert problems(kind, done, undisturbed) == [], done.said


def test_a_trial_that_went_wrong_is_noticed(tmp_path: Path) -> None:
    from dataclasses import replace

    from bench.recovery import Trial

    kind = KINDS["a worker of tf_multiworker"]
    every = list(range(1, STEPS + 1))
    good = Trial(0, "", 1, 0.25, 0.97, {0: every, 1: every}, 30, [], [])
    assert problems(kind, good, good) == []
    for change in (
        {"code": 1},
        {"restarts": 0},
        {"loss": 0.2500001},
        {"left": [7]},
        {"bound": ["127.0.0.1:7"]},
        {"rows": {0: every, 1: [*every[:-1], 7]}},
        {"rows": {0: every, 1: every[:-1]}},
    ):
        assert problems(kind, replace(good, **change), good) != []

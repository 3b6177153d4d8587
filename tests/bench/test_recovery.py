"""A killed process of each kind costs what it should, and no more; `bench.recovery` has more trials."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.recovery import KINDS, STEPS, Trial, problems, run_trial
from tests.support import instances

pytestmark = pytest.mark.timed

# One that comes back, and one whose state is lost.
KEPT = ("a worker of torch's parameter_server", "a parameter server")


@pytest.mark.slow
@pytest.mark.parametrize("name", instances(KINDS, *KEPT))
def test_a_job_outlives_the_kill_of(
    name: str, tmp_path: Path, mnist: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A cap on a test run's minutes would end the training early.
    monkeypatch.delenv("SCALEGUIDE_MAX_MINUTES", raising=False)
    kind = KINDS[name]
    undisturbed = run_trial(kind, tmp_path / "run", kill_after=None) if "multiworker" in name else None
    if undisturbed is not None:
        assert undisturbed.code == 0, undisturbed.output
    trial = run_trial(kind, tmp_path / "run", kill_after=random.randrange(10, STEPS // 3))
    assert problems(kind, trial, undisturbed) == [], trial.output


EVERY = [(step, 0.01) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize(
    "change",
    [
        {"code": 1},
        {"restarts": 0},
        {"loss": 0.2500001},
        {"accuracy": 0.5},
        {"left_processes": ["rank-0"]},
        {"left_ports": [7]},
        {"rows": {0: EVERY, 1: [*EVERY[:-1], (7, 0.01)]}},
        {"rows": {0: EVERY, 1: EVERY[:-1]}},
    ],
)
def test_a_trial_that_went_wrong_is_noticed(change: dict[str, Any]) -> None:
    kind = KINDS["a worker of tf_multiworker"]
    good = Trial(0, "", 1, 0.25, 0.97, {0: EVERY, 1: EVERY}, 30, 9.0, [], [])
    assert problems(kind, good, good) == []
    assert problems(kind, replace(good, **change), good) != []


@pytest.mark.parametrize(
    "change", [{"code": 0}, {"output": "failed"}, {"seconds_after": 10.5}, {"left_processes": ["rank-0"]}]
)
def test_a_job_that_should_end_and_does_not_is_noticed(change: dict[str, Any]) -> None:
    kind = KINDS["a rank of mpi"]
    good = Trial(1, "rank 1 was killed by SIGKILL", 0, None, None, {}, 30, 9.0, [], [])
    assert problems(kind, good, None) == []
    assert problems(kind, replace(good, **change), None) != []


def test_a_worker_that_does_not_return_is_noticed() -> None:
    kind = KINDS["a worker that returns"]
    taken = 2 * kind.steps - 100
    other = [(step, 0.01) for step in range(1, taken + 1)]

    def trial(absent: float, after: int) -> Trial:
        lost_worker = [(step, absent if step == after else 0.01) for step in range(1, 101)]
        return Trial(0, "", 1, 0.25, 0.97, {0: other, 1: lost_worker}, 30, 9.0, [], [])

    assert problems(kind, trial(4.0, after=50), None) == []
    # It was never away, or came back for nothing.
    assert problems(kind, trial(0.01, after=50), None) == ["the lost worker was not used again"]
    assert problems(kind, trial(4.0, after=95), None) == ["the lost worker was not used again"]

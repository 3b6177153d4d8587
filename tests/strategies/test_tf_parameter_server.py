"""A parameter server of TensorFlow's: asynchronous for real, its variables where they are said to be."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.strategies.parity import Case, rows, write
from tests.support import ranks

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 180
WORDS = ("strategy=tf_parameter_server", "strategy.servers=2")
# Enough steps of enough work to see both workers at it.
STEPS = 40
LONG = (*WORDS, "workers=2", "model=cnn", "batch=128", "strategy.sharding=fixed")
CASES = (Case("as they can", LONG), Case("one at a time", LONG, "one at a time"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both cases, trained by two workers with two servers."""
    folder = tmp_path_factory.mktemp("cases")
    write(folder, CASES, STEPS)
    with ranks("tests.strategies.tf_parity_rank", [folder], 2, folder, words=WORDS) as started:
        started.wait(LIMIT_SECONDS)
    return folder


def overlaps(folder: Path) -> int:
    """How many compute intervals of worker 0 have some time in common with one of worker 1."""
    by_worker = []
    for rank in (0, 1):
        intervals = json.loads((folder / str(rank) / "timeline.json").read_text())
        by_worker.append([(start, end) for _, what, _, start, end in intervals if what == "compute"])
    first, second = by_worker
    return sum(any(max(a, c) < min(b, d) for c, d in second) for a, b in first)


def staleness(folder: Path) -> float:
    values = [float(row["staleness"]) for rank in (0, 1) for row in rows(folder / str(rank) / "steps.csv")]
    return sum(values) / len(values)


def test_both_workers_compute_at_once_and_gradients_are_stale(trained: Path) -> None:
    assert overlaps(trained / "as they can") >= 5
    assert staleness(trained / "as they can") > 0.1


def test_serialised_steps_would_be_noticed(trained: Path) -> None:
    assert overlaps(trained / "one at a time") == 0
    assert staleness(trained / "one at a time") == 0


def test_a_worker_is_told_of_several_steps_at_once(trained: Path) -> None:
    together = []
    for rank in (0, 1):
        intervals = json.loads((trained / "as they can" / str(rank) / "timeline.json").read_text())
        begun = [start for _, what, _, start, _ in intervals if what == "fetch"]
        ended = [end for _, what, _, _, end in intervals if what == "push"]
        # The worker itself goes on to the next one, in the very moment in which it is done.
        first = [i for i in range(1, len(begun)) if begun[i] != ended[i - 1]]
        together += [b - a for a, b in itertools.pairwise(first)]
    assert len(together) > 5
    assert set(together) == {4}


@pytest.mark.parametrize("case", [case.name for case in CASES])
def test_an_epochs_samples_are_shared_as_the_workers_can(trained: Path, case: str) -> None:
    steps = {rank: rows(trained / case / str(rank) / "steps.csv") for rank in (0, 1)}
    assert sum(len(steps_of_rank) for steps_of_rank in steps.values()) == 2 * STEPS
    assert {row["samples"] for steps_of_rank in steps.values() for row in steps_of_rank} == {"64"}
    for steps_of_rank in steps.values():
        assert [int(row["step"]) for row in steps_of_rank] == list(range(1, len(steps_of_rank) + 1))
        assert all(float(row["seconds"]) > 0 for row in steps_of_rank)


def test_a_sharded_variables_rows_stand_on_both_servers(trained: Path) -> None:
    placement = json.loads((trained / "as they can" / "placement.json").read_text())
    (kernel,) = (parts for name, parts in placement.items() if name.endswith("dense/kernel"))
    assert kernel == [{"server": 0, "row": 0, "rows": 400}, {"server": 1, "row": 400, "rows": 400}]

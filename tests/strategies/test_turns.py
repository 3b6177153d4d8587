"""Torch's workers that take turns, as real processes: they overlap, are stale, and record what they did."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STEPS = 80
WORDS = (
    *("workers=2", "model=cnn", "batch=128", f"dataset.limit={STEPS * 128}", "optimizer.lr=0.02"),
    *("hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none", "out=run"),
)
SERVED = ("strategy=parameter_server", "strategy.servers=2")
CASES = {
    "async": (*SERVED, "strategy.mode=async"),
    "sync": (*SERVED, "strategy.mode=sync"),
    "ssp": (*SERVED, "strategy.mode=ssp", "strategy.staleness=1"),
    "hogwild": ("strategy=hogwild",),
}
ASYNCHRONOUS = ("async", "ssp", "hogwild")


@pytest.fixture(scope="module")
def runs(module_commands: Callable[[], Any], mnist: None) -> Callable[[str], Path]:
    """The folder of a case's run, made when first asked for."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            commands = module_commands()
            done = commands.run(*CASES[name], *WORDS)
            assert done.returncode == 0, done.stderr
            assert commands.left() == []
            made[name] = commands.folder / "run"
        return made[name]

    return folder


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def overlaps(folder: Path) -> int:
    """How many compute intervals of worker 0 have some time in common with one of worker 1."""
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    first, second = (
        [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "compute" and e["pid"] == rank]
        for rank in (0, 1)
    )
    return sum(any(max(a, c) < min(b, d) for c, d in second) for a, b in first)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_both_workers_compute_at_once_and_gradients_are_stale(runs: Callable[[str], Path], name: str) -> None:
    folder = runs(name)
    assert overlaps(folder) >= 5
    assert json.loads((folder / "metrics.json").read_text())["staleness_mean"] > 0.05


@pytest.mark.parametrize("name", CASES)
def test_every_share_was_trained_once_and_is_recorded(runs: Callable[[str], Path], name: str) -> None:
    steps = table(runs(name) / "steps.csv")
    assert len(steps) == 2 * STEPS
    assert {row["samples"] for row in steps} == {"64"}
    assert all(row["staleness"] != "" for row in steps)
    for rank in "01":
        numbers = [int(row["step"]) for row in steps if row["rank"] == rank]
        assert numbers == list(range(1, len(numbers) + 1))
    assert json.loads((runs(name) / "metrics.json").read_text())["accuracy"] > 0.7


def test_nobody_is_stale_or_ahead_who_waits_for_all(runs: Callable[[str], Path]) -> None:
    found = json.loads((runs("sync") / "metrics.json").read_text())
    assert (found["staleness_mean"], found["clock_gap_max"]) == (0, 0)


def test_nobody_is_further_ahead_than_the_bound(runs: Callable[[str], Path]) -> None:
    assert json.loads((runs("ssp") / "metrics.json").read_text())["clock_gap_max"] <= 1


@pytest.mark.parametrize("name", CASES)
def test_what_each_worker_did_adds_up(runs: Callable[[str], Path], name: str) -> None:
    workers = table(runs(name) / "workers.csv")
    assert [row["rank"] for row in workers] == ["0", "1"]
    parameters = json.loads((runs(name) / "metrics.json").read_text())["parameters"]
    for row in workers:
        assert int(row["samples"]) == 64 * int(row["steps"])
        assert int(row["fetched_bytes"]) == int(row["pushed_bytes"]) == 4 * parameters * int(row["steps"])
        spent = float(row["busy_seconds"]) + float(row["exchange_seconds"])
        assert 0 < spent <= 1.1 * float(row["seconds"])

"""Torch's asynchronous workers, as real processes: they overlap, are stale, and record what they did."""

from __future__ import annotations

import contextlib
import csv
import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

STEPS = 80
# Under ssp there is time for one worker to stand still now and then.
LONG = 240
# Clocks that a worker may be ahead under ssp, and how often the other one stands still.
BOUND, PAUSES = 2, 3
WORDS = (
    "workers=2", "model=cnn", "batch=128", "optimizer.lr=0.02",
    "hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none", "out=run",
)  # fmt: skip
SERVED = ("strategy=parameter_server", "strategy.servers=2")
CASES = {
    "async": (*SERVED, "strategy.mode=async"),
    "sync": (*SERVED, "strategy.mode=sync"),
    "ssp": (*SERVED, "strategy.mode=ssp", f"strategy.staleness={BOUND}"),
    "hogwild": ("strategy=hogwild",),
}
# By far the longest training.
SSP = pytest.param("ssp", marks=pytest.mark.slow)
NAMES = [SSP if name == "ssp" else name for name in CASES]


def steps_of(name: str) -> int:
    """How many batches are trained in a case."""
    return LONG if name == "ssp" else STEPS


def worker(commands: Any, number: int) -> psutil.Process:
    """Its process."""
    for process in commands.left():
        with contextlib.suppress(psutil.Error):
            if process.name() == f"rank-{number}":
                return process
    raise LookupError(f"no worker {number}")


def waits(process: psutil.Process) -> bool:
    """Whether it computes nothing for a while."""
    before = process.cpu_times()
    time.sleep(0.5)
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system < 0.05


def straggle(commands: Any, until: Callable[..., float]) -> None:
    """Now one worker stands still, now another, each until the other one waits for it."""
    steps = commands.folder / "run" / "ranks" / "0" / "steps.csv"
    until(lambda: steps.exists() and table(steps), 60, "the training begins")
    for slow in random.choices((0, 1), k=PAUSES):
        worker(commands, slow).suspend()
        try:
            until(partial(waits, worker(commands, 1 - slow)), 30, "the other worker waits")
        finally:
            worker(commands, slow).resume()


@pytest.fixture(scope="module")
def runs(
    module_commands: Callable[[], Any], until: Callable[..., float], mnist: None
) -> Callable[[str], Path]:
    """The folder of a case's run, made when first asked for; ssp's with a straggler."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            commands = module_commands()
            process = commands.start(*CASES[name], *WORDS, f"dataset.limit={steps_of(name) * 128}")
            if name == "ssp":
                straggle(commands, until)
            assert process.wait(240) == 0, commands.output()
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


@pytest.mark.parametrize("name", ["async", SSP, pytest.param("hogwild", marks=pytest.mark.slow)])
def test_both_workers_compute_at_once_and_gradients_are_stale(runs: Callable[[str], Path], name: str) -> None:
    folder = runs(name)
    assert overlaps(folder) >= 5
    assert json.loads((folder / "metrics.json").read_text())["staleness_mean"] > 0.05


@pytest.mark.parametrize("name", NAMES)
def test_every_share_was_trained_once_and_is_recorded(runs: Callable[[str], Path], name: str) -> None:
    steps = table(runs(name) / "steps.csv")
    assert len(steps) == 2 * steps_of(name)
    assert {row["samples"] for row in steps} == {"64"}
    assert all(row["staleness"] != "" for row in steps)
    for rank in "01":
        numbers = [int(row["step"]) for row in steps if row["rank"] == rank]
        assert numbers == list(range(1, len(numbers) + 1))
    assert json.loads((runs(name) / "metrics.json").read_text())["accuracy"] > 0.7


def test_nobody_is_stale_or_ahead_who_waits_for_all(runs: Callable[[str], Path]) -> None:
    metrics = json.loads((runs("sync") / "metrics.json").read_text())
    assert (metrics["staleness_mean"], metrics["clock_gap_max"]) == (0, 0)


@pytest.mark.slow
def test_under_a_straggler_the_others_go_ahead_as_far_as_the_bound(runs: Callable[[str], Path]) -> None:
    assert json.loads((runs("ssp") / "metrics.json").read_text())["clock_gap_max"] == BOUND


@pytest.mark.parametrize("name", NAMES)
def test_what_each_worker_did_adds_up(runs: Callable[[str], Path], name: str) -> None:
    workers = table(runs(name) / "workers.csv")
    assert [row["rank"] for row in workers] == ["0", "1"]
    parameters = json.loads((runs(name) / "metrics.json").read_text())["parameters"]
    for row in workers:
        assert int(row["samples"]) == 64 * int(row["steps"])
        assert int(row["fetched_bytes"]) == int(row["pushed_bytes"]) == 4 * parameters * int(row["steps"])
        spent = float(row["busy_seconds"]) + float(row["exchange_seconds"])
        assert 0 < spent <= 1.1 * float(row["seconds"])


def test_every_gradient_of_an_iteration_is_counted_and_whose_it_was(commands, mnist: None) -> None:
    completed = commands.run(
        "strategy=sandblaster_lbfgs",
        "workers=2",
        "model=mlp",
        "batch=2000",
        "dataset.limit=4000",
        "epochs=4",
        "hardware.warmup_steps=0",
        *WORDS[4:],
    )
    assert completed.returncode == 0, completed.stderr
    folder = commands.folder / "run"
    metrics, workers = json.loads((folder / "metrics.json").read_text()), table(folder / "workers.csv")
    size = 4 * metrics["parameters"]
    # Eight iterations, each with a gradient at its beginning and one a trial, each of four portions of 500.
    gradients = round(sum(int(row["pushed_bytes"]) for row in workers) / size)
    assert gradients % 4 == 0 and gradients >= 8 * 2 * 4
    # No more often than there are portions, and every point is sent to one at least.
    fetched = round(sum(int(row["fetched_bytes"]) for row in workers) / size)
    assert gradients / 4 <= fetched <= gradients / 2
    assert metrics["payload_bytes"] == pytest.approx((gradients + fetched) * size, rel=1e-6)
    assert sum(int(row["samples"]) for row in workers) == 8 * 2000


def test_a_mistake_that_workers_find_is_one_line_and_no_crash(commands, mnist: None) -> None:
    weights = commands.folder / "weights.pt"
    weights.write_text("none")
    completed = commands.run("strategy=hogwild", f"model.pretrained={weights}", "model=resnet18", *WORDS[3:])
    assert completed.returncode == 2, completed.stderr
    (line,) = [line for line in completed.stderr.splitlines() if line.startswith("error")]
    assert str(weights) in line
    assert "started again" not in completed.stderr

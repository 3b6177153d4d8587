"""Two commands at once: who gets which device, who waits for whom, and what a killed one leaves."""

from __future__ import annotations

import contextlib
import csv
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from src.machine.devices import usable_cores
from tests.conftest import Commands
from tests.support import ROOT, STEPS, holder

pytestmark = pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")

ALONE = ("hardware.device=cpu", "tracking.backend=none", "hardware.sample_seconds=0.1", "optimizer.lr=0.01")
SHORT = (*ALONE, f"dataset.limit={128 * STEPS}")
LONG = (*ALONE, "epochs=1000")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The locks of one test aren't those of another one."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.delenv("SCALEGUIDE_MAX_MINUTES", raising=False)


@pytest.fixture
def hold() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process that has taken CPU devices, by their numbers."""
    with contextlib.ExitStack() as stack:
        words = ("-m", "tests.machine.lock_holder", "cpu", "alone")
        yield lambda *numbers: stack.enter_context(holder(*words, *map(str, numbers)))


def environment(folder: Path) -> dict:
    return json.loads((folder / "environment.json").read_text())


@pytest.mark.slow
def test_two_commands_with_a_device_each_run_at_once(
    mnist: None, module_commands: Callable[[], Commands], until: Callable
) -> None:
    both = [module_commands(), module_commands()]
    started = [
        commands.start(*LONG, f"hardware.devices=[{number}]", "out=run")
        for number, commands in enumerate(both)
    ]
    for commands in both:
        steps = commands.folder / "run/ranks/0/steps.csv"
        until(lambda steps=steps: steps.exists() and steps.stat().st_size > 200, 120, "training")
    affinities = [commands.rank(0).cpu_affinity() for commands in both]
    assert affinities == [[core] for core in usable_cores()[:2]]
    assert all(process.poll() is None for process in started)
    # A third one is refused at once, whatever it asks for.
    third = module_commands()
    begun = time.monotonic()
    refused = third.run(*SHORT, "hardware.devices=[1]", "out=run")
    # A command that waits does so for an hour.
    assert time.monotonic() - begun < 30
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"error: hardware.devices=[1]: cpu device 1 is taken by pid {started[1].pid} (")
    assert "src.train" in line
    assert not (third.folder / "run").exists()
    # A killed command leaves its device.
    started[1].send_signal(signal.SIGKILL)
    started[1].wait()
    assert third.run(*SHORT, "hardware.devices=[1]", "out=run").returncode == 0
    (device,) = environment(third.folder / "run")["devices"]
    assert device == {"kind": "cpu", "number": 1, "cores": [usable_cores()[1]]}
    for commands in both:
        commands.end()


def test_a_command_takes_the_device_that_is_free(
    mnist: None, commands: Commands, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    hold(0)
    completed = commands.run(*SHORT, "out=run")
    assert completed.returncode == 0, completed.stderr
    assert "waiting" not in completed.stderr
    assert environment(commands.folder / "run")["devices"][0]["number"] == 1


def test_a_command_that_finds_too_few_waits_and_says_for_whom(
    mnist: None,
    commands: Commands,
    hold: Callable[..., subprocess.Popen[str]],
    until: Callable,
) -> None:
    other = hold(1)
    process = commands.start(*SHORT, "strategy=ddp", "out=run")
    until(lambda: "\n" in commands.output()[1], 60, "waiting")
    said = commands.output()[1]
    assert said.startswith("waiting for devices, at most 60 minutes: cpu device 1 is taken by ")
    assert f"pid {other.pid} (" in said
    # It hasn't begun with anything, such as importing a framework.
    assert psutil.Process(process.pid).children() == []
    assert not (commands.folder / "run").exists()
    released = time.time()
    other.kill()
    other.wait()
    assert process.wait(120) == 0, commands.output()
    numbers = [device["number"] for device in environment(commands.folder / "run")["devices"]]
    assert numbers == [0, 1]
    # The wait is in no figure.
    metrics = json.loads((commands.folder / "run/metrics.json").read_text())
    assert metrics["total_seconds"] < time.time() - released + 2


def test_a_wait_has_its_limit(commands: Commands, hold: Callable[..., subprocess.Popen[str]]) -> None:
    hold(0, 1)
    completed = commands.run(*SHORT, "hardware.wait_minutes=0", "out=run")
    assert completed.returncode == 1
    (line,) = completed.stderr.splitlines()
    assert line.startswith("error: waited 0 minutes (hardware.wait_minutes) for devices: cpu device 0 is ")
    assert not (commands.folder / "run").exists()


def test_ctrl_c_ends_a_wait(
    commands: Commands, hold: Callable[..., subprocess.Popen[str]], until: Callable
) -> None:
    hold(0, 1)
    process = commands.start(*SHORT, "out=run")
    until(lambda: "waiting" in commands.output()[1], 60, "waiting")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert "interrupted" in commands.output()[1]


@pytest.mark.slow
def test_a_sweep_does_not_wait_for_itself(mnist: None, commands: Commands) -> None:
    completed = commands.run(
        *SHORT, "strategy=single,ddp", "-m", "hardware.wait_minutes=0", "out=run/${strategy.name}"
    )
    assert completed.returncode == 0, completed.stderr
    assert len(environment(commands.folder / "run/ddp")["devices"]) == 2


@pytest.mark.slow
def test_a_launcher_that_runs_cells_at_once_has_each_take_a_device(mnist: None, commands: Commands) -> None:
    plugin = ROOT / "tests/parallel_launcher"
    completed = commands.run(
        *SHORT,
        "hydra/launcher=parallel",
        "-m",
        "seed=0,1,2",
        "out=run-${seed}",
        PYTHONPATH=f"{ROOT}:{plugin}",
    )
    assert completed.returncode == 0, completed.stderr
    # There are more cells than devices where there are two, and none is anybody's twice at once.
    windows: dict[int, list[tuple[float, float]]] = {}
    for seed in range(3):
        folder = commands.folder / f"run-{seed}"
        assert json.loads((folder / "metrics.json").read_text())["status"] == "ok"
        (device,) = environment(folder)["devices"]
        with (folder / "trace.csv").open(newline="") as file:
            moments = [float(row["time"]) for row in csv.DictReader(file)]
        windows.setdefault(device["number"], []).append((moments[0], moments[-1]))
    assert len(windows) > 1
    for spans in windows.values():
        spans.sort()
        assert all(before[1] < after[0] for before, after in pairwise(spans))

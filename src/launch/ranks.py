"""Starts a run's ranks as fresh processes and leaves none behind.

A rank is its own session, so that a Ctrl-C reaches the parent alone, which ends the ranks in order;
should the parent itself be killed, the kernel ends them (`src.worker` asks for that).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

from src.config import Config
from src.launch import devices, quota
from src.launch.place import CAME, Place

TERMINATE_SECONDS = 3.0
# How long after a first failure another rank may still report one: a rank that loses its peer often
# exits before the peer that caused it.
BLAME_SECONDS = 1.0
HEAR_SECONDS = 0.5
# A rank's exit status for results that are not crashes.
EXIT_OUT_OF_MEMORY = 77
EXIT_DISK_FULL = 78
# A mistake that shows only once the model is built, as a cut that it doesn't allow.
EXIT_MISTAKE = 79
# What has ended so would end so again.
RESULTS = (EXIT_OUT_OF_MEMORY, EXIT_DISK_FULL, EXIT_MISTAKE)

# glibc returns freed blocks of this size to the kernel and faults them in again at every step;
# keeping them is worth a third of a small CNN's step (see docs/ARCHITECTURE.md, "Speed").
KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**26),
}


class Process(Protocol):
    """A started process that leads a group of its own: a child (`subprocess.Popen`), or as good as one."""

    pid: int

    def poll(self) -> int | None:
        """Its exit status (negative: a signal), `None` while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended; raises `subprocess.TimeoutExpired` after `timeout` seconds."""


# Starts a command with these variables besides the parent's, and with its output appended to a file.
Spawn = Callable[[list[str], Mapping[str, str], Path], Process]


@dataclass
class Rank:
    """A started process."""

    number: int
    devices: list[devices.Device]
    process: Process
    log: Path
    place: Place


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended: `failed` is the place in their list of the one to blame, with its exit code
    (negative: a signal)."""

    failed: int | None = None
    code: int = 0
    timed_out: bool = False


def start(config: Config, folder: Path, *, started: float, resume: Path | None = None) -> list[Rank]:
    """Starts every process of the job pinned to its own devices, with a log file each.

    `resume` is the checkpoint of a job that is started again.
    """
    launcher = importlib.import_module(f"src.launch.{config.strategy['launcher']}")
    found = devices.find(config.hardware["device"], config.hardware["cores_per_device"])
    further = {"SCALEGUIDE_STARTED": repr(started), "SCALEGUIDE_PARENT": str(os.getpid())}
    if resume is not None:
        further["SCALEGUIDE_RESUME"] = str(resume)
    # Of a start before this one.
    for mark in folder.glob(f"ranks/*/{CAME}"):
        mark.unlink()
    ranks, spawn = begin(launcher, config, folder / "logs")
    try:
        # Nobody has let them in: who should have is to blame.
        for place in launcher.places(config) if spawn else ():
            own = devices.of_one_process([found[worker % len(found)] for worker in place.workers])
            log = folder / "logs" / f"{place.name}.log"
            told = {**place.environment, **_pinning(own), **further}
            if place.helper:
                told["CUDA_VISIBLE_DEVICES"] = ""
            elif len(place.workers) == 1:
                told |= quota.told(config.hardware, place.workers[0], len(own[0].cores))
            if place.serves:
                told["SCALEGUIDE_SERVES"] = "1"
            place = dataclasses.replace(place, environment=told)
            process = spawn(_worker(folder), told, log)
            ranks.append(Rank(int(told["RANK"]), own, process, log, place))
    except BaseException:
        stop(ranks)
        raise
    return ranks


def begin(launcher: ModuleType, config: Config, logs: Path) -> tuple[list[Rank], Spawn | None]:
    """What runs already before the first rank, and how ranks are started: by `launcher.begin` if it has
    one, as the parent's own children otherwise."""
    return launcher.begin(config, logs) if hasattr(launcher, "begin") else ([], spawn_child)


def restart(rank: Rank, folder: Path) -> None:
    """Starts a process that has ended again, in its old place."""
    rank.process = spawn_child(_worker(folder), rank.place.environment, rank.log)


def _worker(folder: Path) -> list[str]:
    return [sys.executable, "-u", "-m", "src.worker", str(folder / "config.yaml")]


def spawn_child(command: list[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A `Spawn`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **KEEP_FREED_MEMORY, **environment},
            start_new_session=True,
        )


def _pinning(own: list[devices.Device]) -> dict[str, str]:
    cores = [core for device in own for core in device.cores]
    threads = str(len(cores))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {
        **dict.fromkeys(names, threads),
        "CUDA_VISIBLE_DEVICES": ",".join(str(device.index) for device in own if device.kind == "gpu"),
        "SCALEGUIDE_CORES": ",".join(str(core) for core in cores),
    }


def supervise(
    ranks: list[Rank],
    *,
    limit: float,
    tick: Callable[[], None],
    revive: Callable[[Rank], bool] = lambda rank: False,
    came: Callable[[Rank], bool] = lambda rank: True,
) -> Outcome:
    """Waits until every rank that has an end of its own has ended, calling `tick` about twice a second.

    The first rank that fails, or `limit` seconds, ends all of them. One that the job can do without is
    offered to `revive`, which may start it again; it fails when no such rank is left, or if that one
    never `came`: others may wait for it for ever, and don't hear of its end.
    """
    ended: queue.Queue[tuple[int, int]] = queue.Queue()

    def watch(index: int) -> None:
        threading.Thread(target=lambda: ended.put((index, ranks[index].process.wait())), daemon=True).start()

    for index in range(len(ranks)):
        watch(index)
    deadline = time.monotonic() + limit
    running = set(range(len(ranks)))
    failures: list[tuple[int, int]] = []
    while any(not ranks[index].place.serves for index in running):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            stop(ranks)
            return _blame(ranks, failures) if failures else Outcome(timed_out=True, code=1)
        with contextlib.suppress(queue.Empty):
            index, code = ended.get(timeout=min(0.5, remaining))
            dispensable = ranks[index].place.dispensable and code not in RESULTS
            if code and dispensable and not failures and revive(ranks[index]):
                watch(index)
                continue
            running.discard(index)
            alone = not any(ranks[other].place.dispensable for other in running)
            if code and (alone or not dispensable or not came(ranks[index])):
                failures.append((index, code))
                deadline = min(deadline, time.monotonic() + BLAME_SECONDS)
        tick()
    with contextlib.suppress(queue.Empty):
        # Who served them may have ended first, and be heard of last.
        while failures and running:
            index, code = ended.get(timeout=HEAR_SECONDS)
            running.discard(index)
            failures += [(index, code)] if code else []
    stop(ranks)
    return _blame(ranks, failures)


def _blame(ranks: list[Rank], failures: list[tuple[int, int]]) -> Outcome:
    """The cause among the failures: a killed rank or a known result first, then the earliest.

    A killed process that serves the others takes them along: it comes before those that were killed with it.
    """
    if not failures:
        return Outcome()

    def order(failure: tuple[int, int]) -> int:
        index, code = failure
        if code < 0 and ranks[index].place.serves:
            return 0
        return 1 if code in RESULTS or code < 0 else 2

    failures.sort(key=order)
    return Outcome(*failures[0])


def stop(ranks: list[Rank]) -> None:
    """Ends every rank and whatever it started: asks first, kills after `TERMINATE_SECONDS`."""
    for rank in ranks:
        if rank.process.poll() is None:
            _signal(rank, signal.SIGTERM)
    deadline = time.monotonic() + TERMINATE_SECONDS
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.process.wait(max(0.0, deadline - time.monotonic()))
    for rank in ranks:
        # The group outlives its leader when a rank left children.
        _signal(rank, signal.SIGKILL)
        rank.process.wait()
    if any(quota.CGROUP in rank.place.environment for rank in ranks):
        quota.remove()


def _signal(rank: Rank, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(rank.process.pid, number)

"""Starts a run's ranks as fresh processes and leaves none behind.

A rank is its own session, so that a Ctrl-C reaches the parent alone, which ends the ranks in order;
should the parent itself be killed, the kernel ends them (`src.worker` asks for that).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from src.config import Config
from src.launch import devices

TERMINATE_SECONDS = 3.0
# How long after a first failure another rank may still report one: a rank that loses its peer often
# exits before the peer that caused it.
BLAME_SECONDS = 1.0
# A rank's exit status for results that are not crashes.
EXIT_OUT_OF_MEMORY = 77
EXIT_DISK_FULL = 78
# A mistake that shows only once the model is built, as a cut that it doesn't allow.
EXIT_MISTAKE = 79

# glibc returns freed blocks of this size to the kernel and faults them in again at every step;
# keeping them is worth a third of a small CNN's step (see docs/ARCHITECTURE.md, "Speed").
KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**26),
}


@dataclass
class Rank:
    """A started rank."""

    number: int
    devices: list[devices.Device]
    process: subprocess.Popen[bytes]
    log: Path


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended: `failed` is the rank to blame, with its exit code (negative: a signal)."""

    failed: int | None = None
    code: int = 0
    timed_out: bool = False


def start(config: Config, folder: Path, *, started: float) -> list[Rank]:
    """Starts every rank pinned to its own devices, with a log file each.

    Workers share the devices out evenly among as many ranks as the launcher has environments for.
    """
    launcher = importlib.import_module(f"src.launch.{config.strategy['launcher']}")
    found = devices.find(config.hardware["device"], config.hardware["cores_per_device"])
    ranks: list[Rank] = []
    try:
        environments = launcher.environments(config)
        each = config.workers // len(environments)
        for number, extra in enumerate(environments):
            places = range(number * each, (number + 1) * each)
            own = devices.of_one_process([found[place % len(found)] for place in places])
            log = folder / "logs" / f"rank-{number}.log"
            environment = {**os.environ, **KEEP_FREED_MEMORY, **_pinning(own), **extra}
            environment["SCALEGUIDE_STARTED"] = repr(started)
            environment["SCALEGUIDE_PARENT"] = str(os.getpid())
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-u", "-m", "src.worker", str(folder / "config.yaml")],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            ranks.append(Rank(number, own, process, log))
    except BaseException:
        stop(ranks)
        raise
    return ranks


def _pinning(own: list[devices.Device]) -> dict[str, str]:
    cores = [core for device in own for core in device.cores]
    threads = str(len(cores))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {
        **dict.fromkeys(names, threads),
        "CUDA_VISIBLE_DEVICES": ",".join(str(device.index) for device in own if device.kind == "gpu"),
        "SCALEGUIDE_CORES": ",".join(str(core) for core in cores),
    }


def supervise(ranks: list[Rank], *, limit: float, tick: Callable[[], None]) -> Outcome:
    """Waits until every rank has ended, calling `tick` about twice a second.

    The first rank that fails, or `limit` seconds, ends all of them.
    """
    ended: queue.Queue[tuple[int, int]] = queue.Queue()
    for rank in ranks:
        threading.Thread(target=lambda r=rank: ended.put((r.number, r.process.wait())), daemon=True).start()
    deadline = time.monotonic() + limit
    running = len(ranks)
    failures: list[tuple[int, int]] = []
    while running:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            stop(ranks)
            return _blame(failures) if failures else Outcome(timed_out=True, code=1)
        with contextlib.suppress(queue.Empty):
            number, code = ended.get(timeout=min(0.5, remaining))
            running -= 1
            if code:
                failures.append((number, code))
                deadline = min(deadline, time.monotonic() + BLAME_SECONDS)
        tick()
    stop(ranks)
    return _blame(failures)


def _blame(failures: list[tuple[int, int]]) -> Outcome:
    """The cause among the failures: a killed rank or a known result first, then the earliest."""
    if not failures:
        return Outcome()
    failures.sort(
        key=lambda failure: (
            failure[1] not in (EXIT_OUT_OF_MEMORY, EXIT_DISK_FULL, EXIT_MISTAKE) and failure[1] > 0
        )
    )
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


def _signal(rank: Rank, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(rank.process.pid, number)

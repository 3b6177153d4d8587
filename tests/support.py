"""What tests of ranks share: a checked configuration, and real processes that never outlive a test."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from src.config import Config, command_line, compose
from src.launch.launched import LaunchedProcess
from src.launch.launcher import launcher_of
from src.launch.local.hosts import LocalHosts
from src.launch.spawn import Process
from src.launch.supervise import processes
from src.run import variables
from tests.forking import start_fork_server

ROOT = Path(__file__).parents[1]
# Of a short run: 5 of warm-up and more than the 50 that a throughput needs.
STEPS, BATCH = 60, 64
SHORT = (
    f"batch={BATCH}",
    f"dataset.limit={BATCH * STEPS}",
    "dataset.test_limit=2000",
    # At a higher rate rounding, or stale gradients with momentum, now and then decide what is learned.
    "optimizer.lr=0.01",
    # The first evaluation, at an epoch's end, reaches it, and ends the run.
    "epochs=2",
    "target_accuracy=0.3",
    "stop_at_target=true",
    "hardware.sample_seconds=0.05",
    "hardware.device=cpu",
    "hardware.share_devices=true",
)


def assert_opens_in_perfetto(trace: Mapping[str, Any]) -> None:
    """Check that a mapping is a Chrome trace, and that no two events of a lane overlap."""
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    named = set()
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and event["name"], event
        assert event["ph"] in ("X", "M"), event
        lane = event["pid"], event["tid"]
        if event["ph"] == "X":
            begin, length = (round(event[key] * 1000) for key in ("ts", "dur"))
            assert begin >= 0 and length > 0, event
            lanes.setdefault(lane, []).append((begin, begin + length))
        elif event["name"] in ("process_name", "thread_name"):
            assert isinstance(event["args"]["name"], str), event
            named.add((event["name"], *lane))
    for lane, times in lanes.items():
        assert ("thread_name", *lane) in named and ("process_name", lane[0], 0) in named
        times.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(times)), lane


def environment_of(process: psutil.Process, seconds: float = 10.0) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it has none after so many seconds.

    A new process is known to its parent a moment before the kernel shows its environment and command line,
    which stay empty until then (Linux closes what is closed on exec before it places them).
    """
    deadline = time.monotonic() + seconds
    while not (environment := process.environ()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return environment


class Terminal(io.StringIO):
    """A file in memory that programs take for a terminal."""

    def isatty(self) -> bool:
        """Claim to be one."""
        return True


def answer(*words: str) -> int:
    """Run `python -m src.train` with these words in this process, and return its exit status."""
    from src import train

    return typed(train.main, *words)


def typed(main: Callable[[], int], *words: str) -> int:
    """Run a command with these words in this process, and return its exit status."""
    signals = (signal.SIGINT, signal.SIGTERM)
    handlers, before = [signal.getsignal(number) for number in signals], sys.argv
    sys.argv = [main.__module__, *words]
    try:
        return main()
    finally:
        # The command sets them for the whole process.
        sys.argv = before
        for number, handler in zip(signals, handlers, strict=True):
            signal.signal(number, handler)


def instances(names: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of a test, of which `kept` are an instance of each kind; the others are `make bench`'s."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.long) for name in names]


def config(*words: str) -> Config:
    """The one cell of these overrides, on CPU cores that ranks may share: equality is tested, not speed."""
    fixed = ("hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none")
    with mock.patch.dict(os.environ):
        # A cap on a test run's minutes would end these trainings of ten steps early.
        os.environ.pop("SCALEGUIDE_MAX_MINUTES", None)
        return compose.cells(command_line.parse(command_line.flags_first([*fixed, *words])))[0]


@contextlib.contextmanager
def mounted(place: Path, option: str) -> Iterator[Path]:
    """Mount a file system in memory with a tmpfs option; skip the test where that isn't allowed."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(place)]
    completed = subprocess.run(command, capture_output=True, text=True)
    if completed.returncode:
        pytest.skip(f"a small file system can't be mounted here: {completed.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path, *, leave: int = 0) -> Path:
    """Fill the file system that is mounted at `place` but for some bytes; return the file that does so."""
    free, filler = os.statvfs(place), place / "filler"
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize - leave))
    return filler


def has_ended(pid: int) -> bool:
    """Whether there is no such process any more; a zombie, for whose end nobody has waited, has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def holder(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python with `arguments`, a program that takes something and then prints `held`.

    It is killed when the block is left.
    """
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def ranks(
    module: str,
    arguments: Sequence[str | Path],
    world: int,
    logs: Path,
    words: Sequence[str] = ("strategy=ddp",),
) -> Iterator[Ranks]:
    """Start `python -m module arguments` as `world` ranks; all are gone when the block is left.

    `words` is a strategy, whose launcher starts them, and what else that asks of it.
    """
    chosen = config(*words, f"workers={world}", f"batch={world}")
    start_fork_server(chosen.framework)
    launcher, hosts = launcher_of(chosen), LocalHosts()
    logs.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(ROOT):
        before, spawn = launcher.open(chosen, logs, hosts)
        started = list(before)
        try:
            assert spawn is not None, before[0].log.read_text()
            for spec in launcher.process_specs(chosen, hosts):
                plain = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
                if spec.serves:
                    plain[variables.SERVES] = "1"
                log = logs / f"{module}-{spec.name}.log"
                command = [sys.executable, "-m", module, *map(str, arguments)]
                process = spawn(command, {**plain, **spec.environment}, log)
                _keep_priority(process.pid)
                started.append(LaunchedProcess(len(started), [], process, log, spec))
            # A process that serves has no end of its own.
            lasting = [launched.process for launched in started if not launched.spec.serves]
            yield Ranks(lasting, [launched.log for launched in started[len(before) :]])
        finally:
            processes.stop(started)


def _keep_priority(pid: int) -> None:
    """Linux shares time out among sessions first, and a rank is one: to it nice values are its own affair."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(os.nice(0)))


class Ranks:
    """Started ranks and their logs."""

    def __init__(self, processes: list[Process], logs: list[Path]) -> None:
        self._processes = processes
        self._logs = logs

    def wait(self, limit: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Until all ranks have ended well, or `until` holds; a rank that ends otherwise, or `limit` seconds,
        raises with the logs."""
        deadline = time.monotonic() + limit
        while any(process.poll() is None for process in self._processes):
            if until():
                return
            if time.monotonic() > deadline or any(process.poll() for process in self._processes):
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                next(p for p in self._processes if p.poll() is None).wait(0.1)
        codes = [process.poll() for process in self._processes]
        if any(code != 0 for code in codes):
            ends = "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in self._logs)
            raise AssertionError(f"ranks ended with {codes} (None: still running)\n{ends}")


def run_ranks(
    module: str,
    arguments: Sequence[str | Path],
    *,
    world: int,
    logs: Path,
    limit: float = 120,
    words: Sequence[str] = ("strategy=ddp",),
) -> None:
    """Run `world` ranks, of the strategy in `words`, to their end."""
    with ranks(module, arguments, world, logs, words) as started:
        started.wait(limit)

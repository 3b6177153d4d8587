"""Look at the steps of several strategies, side by side where a machine has several cores."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pkgutil import resolve_name
from typing import Any
from unittest import mock

from src.config import Config
from src.config.mistakes import CommandError
from src.machine.devices import usable_cores
from src.predict.asked import Asked
from src.predict.looked import Looked

LOOKS = "src.predict.looks"
# What takes longest begins first.
ORDER = ("pipeline", "hybrid", "tensor_parallel", "fsdp", "ddp", "single")

# By the number of devices, what was looked at, or why nothing was.
Every = list[tuple[int, Looked | str]]


@dataclass(frozen=True)
class Job:
    """A function that looks at steps: its import path, and its arguments; what it yields is listed."""

    path: str
    arguments: tuple[Any, ...]

    def do(self) -> list[Any]:
        """Call the function; what a model's builder prints is no answer."""
        # torch asks for GPUs at each operation, unless there are none to see.
        hidden = mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="")
        with contextlib.redirect_stdout(sys.stderr), hidden:
            return list(resolve_name(self.path)(*self.arguments))


def looked_at(
    question: Asked, runs: Mapping[str, tuple[Config, Sequence[int]]], pool: Pool | None
) -> Iterator[tuple[str, Every]]:
    """Yield what looks at each strategy's steps have found, in the order in which they are asked for.

    Args:
        question: what is asked.
        runs: by the name of a strategy a run of it on few devices, and on how many there are to be.
        pool: of processes that look; `None` where this one does.
    """
    jobs = {
        name: Job(f"{LOOKS}.looked_at", (question, name, counts, config))
        for name, (config, counts) in runs.items()
        if counts
    }
    done = dict(every(jobs, pool))
    for name in runs:
        yield name, done.get(name, [])


@contextmanager
def processes(most: int) -> Iterator[Pool | None]:
    """Begin processes for so many jobs at most, and end them; `None` where this process does them itself."""
    # Each process imports the frameworks, which takes seconds, unless this one has.
    cores = len(usable_cores())
    if LOOKS in sys.modules or most < 2 or cores < 2:
        yield None
        return
    # Forked processes would have the locks of this one's threads.
    with ProcessPoolExecutor(min(cores, most), get_context("spawn"), _begin, (LOOKS,)) as pool:
        try:
            # Each begins with a first job.
            for _ in range(min(cores, most)):
                pool.submit(int)
            yield pool
        except BaseException:
            # Whoever interrupts waits for nobody.
            for child in active_children():
                child.terminate()
            raise


def _begin(path: str) -> None:
    """Import a module in a process that looks; what was imported isn't searched for garbage."""
    # What fails here fails in the first job, which tells of it.
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Exception):
        resolve_name(path)
    gc.freeze()


def every(jobs: Mapping[str, Job], pool: Pool | None) -> Iterator[tuple[str, list[Any]]]:
    """Yield what each of several jobs has found, by the name of its strategy.

    Raises:
        CommandError: where a process was killed.
    """
    if pool is None:
        for name, job in jobs.items():
            print(f"looking at {name} ...", file=sys.stderr, flush=True)
            yield name, job.do()
        return
    try:
        begun = {name: pool.submit(jobs[name].do) for name in sorted(jobs, key=ORDER.index)}
        print(f"looking at {', '.join(jobs)} ...", file=sys.stderr, flush=True)
        for name in jobs:
            yield name, begun[name].result()
    except BrokenProcessPool as error:
        raise CommandError(
            "a process that looked at steps was killed; its memory may have run out"
        ) from error

"""Look at the steps of several strategies, side by side where a machine has several cores."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from src.config import Config
from src.config.mistakes import CommandError
from src.predict.asked import Asked
from src.predict.looked import Looked

LOOKS = "src.predict.looks"
# Those that take longest come first.
ORDER = ("pipeline", "hybrid", "tensor_parallel", "fsdp", "ddp", "single")

# By the number of devices, what was looked at, or why nothing was.
Every = list[tuple[int, Looked | str]]


def looked_at(
    question: Asked, runs: Mapping[str, tuple[Config, Sequence[int]]]
) -> Iterator[tuple[str, Every]]:
    """Yield what looks at each strategy's steps have found, in the order in which they are asked for.

    Args:
        question: what is asked.
        runs: by the name of a strategy a run of it on few devices, and on how many there are to be.
    """
    there = {name: (config, counts) for name, (config, counts) in runs.items() if counts}
    # Each process imports the frameworks, which takes seconds, unless this one has.
    cores = len(os.sched_getaffinity(0))
    if LOOKS in sys.modules or len(there) < 2 or cores < 2:
        for name, (config, counts) in runs.items():
            print(f"looking at {name} ...", file=sys.stderr, flush=True)
            yield name, _look(question, name, counts, config) if counts else []
        return
    # Forked processes would have the locks of this one's threads.
    with ProcessPoolExecutor(min(cores, len(there)), get_context("spawn")) as pool:
        try:
            begun: dict[str, Future[Every]] = {}
            for name in sorted(there, key=ORDER.index):
                config, counts = there[name]
                begun[name] = pool.submit(_look, question, name, counts, config)
            print(f"looking at {', '.join(there)} ...", file=sys.stderr, flush=True)
            for name in runs:
                yield name, begun[name].result() if name in begun else []
        except BrokenProcessPool as error:
            raise CommandError(
                "a process that looked at steps was killed; its memory may have run out"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _look(question: Asked, strategy: str, counts: Sequence[int], config: Config) -> Every:
    """Look at a strategy's steps on each number of devices."""
    from src.predict import looks

    # What a model's builder prints is not part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        return list(looks.looked_at(question, strategy, counts, config))

"""One rank of two that asks the other whether to go on, and tells its own time from its waiting.

python -m tests.runtime.torch.callback_rank SHARED.yaml BACKEND.yaml     with a launcher's environment
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import tempfile
import time
from pathlib import Path
from pkgutil import resolve_name
from statistics import median
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist

from src.config import Config
from src.config import run_config as configuration
from src.measure.recorder import Recorder
from src.runtime.common.batch_split import SpeedWindow
from src.runtime.common.context import RankContext
from src.runtime.torch.lightning.callback import TrainingCallback
from tests.prepared_data import load_arrays
from tests.runtime.torch.agreed import leave

SLOW_SECONDS = 0.05
# A rank that waits for the other at the wrong place waits for ever.
PATIENCE = datetime.timedelta(seconds=20)


def agree(context: RankContext, recorder: Recorder) -> None:
    """Rank 1 ends its first step after rank 0 is through, past the time limit: both end after the next."""
    feed = SimpleNamespace(device=torch.device("cpu"), steps=100)
    callback = TrainingCallback(context, recorder, feed, SimpleNamespace(lag=1), contextlib.nullcontext, None)
    trainer = SimpleNamespace(should_stop=False)
    token = torch.zeros(1)
    if context.rank == 1:
        dist.recv(token, 0)
    recorder.train_seconds = (60 * context.config.max_minutes + 1) * context.rank
    for step in (1, 2):
        recorder.steps = step
        callback._agree(trainer)
        assert trainer.should_stop == (step == 2), f"step {step}"
        if context.rank == 0 and step == 1:
            dist.send(token, 1)
    assert callback.status == "time_limit"


def own_times(context: RankContext, recorder: Recorder) -> list[float]:
    """Seconds of each step that the rank says it computed for, where rank 1's optimizer is slow."""
    own_seconds: list[float] = []
    step = torch.optim.SGD.step

    def slow(self: torch.optim.SGD, closure: object = None) -> object:
        loss = step(self, closure)
        time.sleep(SLOW_SECONDS * context.rank)
        return loss

    def collect(_: SpeedWindow, samples: int, seconds: float) -> None:
        own_seconds.append(seconds)

    with mock.patch.object(torch.optim.SGD, "step", slow), mock.patch.object(SpeedWindow, "add", collect):
        resolve_name(context.config.strategy["entry"])(context, recorder)
    return own_seconds


def started(config: Config, folder: Path) -> tuple[RankContext, Recorder]:
    """As `src.worker` hands them to a strategy."""
    rank = int(os.environ["RANK"])
    cores = tuple(sorted(os.sched_getaffinity(0)))[:1]
    context = RankContext(config, rank, config.workers, load_arrays(config.dataset), folder, cores)
    return context, Recorder(config, rank, folder / str(rank), started=time.time(), probes=False)


def main() -> None:
    dist.init_process_group("gloo", timeout=PATIENCE)
    for name in sys.argv[1:]:
        config = configuration.load(Path(name))
        with tempfile.TemporaryDirectory() as folder:
            context, recorder = started(config, Path(folder))
            own = median(own_times(context, recorder)[1:])
        assert (own >= SLOW_SECONDS) == (context.rank == 1), (
            f"{name}: rank {context.rank} computes {own:.3f} s"
        )
        print(f"{Path(name).stem}: {own:.3f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        agree(*started(config, Path(folder)))
    leave()


if __name__ == "__main__":
    main()

"""One rank of two that asks the other whether to go on, and tells its own time from its waiting.

python -m tests.runtime.conductor_rank SHARED.yaml BACKEND.yaml      with a launcher's environment variables
"""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist

from src import config as configuration
from src.config import Config
from src.data import arrays
from src.measure.recorder import Recorder
from src.models.adapt import import_path
from src.runtime.shares import Window
from src.runtime.torch.conductor import Conductor
from src.worker import Run
from tests.runtime.agreed import leave

SLOW_SECONDS = 0.05
# A rank that waits for the other at the wrong place waits for ever.
PATIENCE = datetime.timedelta(seconds=20)


def agree(run: Run, recorder: Recorder) -> None:
    """Rank 1 ends its first step after rank 0 is through, past the time limit: both end after the next."""
    feed = SimpleNamespace(device=torch.device("cpu"))
    conductor = Conductor(run, recorder, feed, lambda: None, None)
    trainer = SimpleNamespace(should_stop=False)
    token = torch.zeros(1)
    if run.rank == 1:
        dist.recv(token, 0)
    recorder.train_seconds = (60 * run.config.max_minutes + 1) * run.rank
    for step in (1, 2):
        recorder.steps = step
        conductor._agree(trainer)
        assert trainer.should_stop == (step == 2), f"step {step}"
        if run.rank == 0 and step == 1:
            dist.send(token, 1)
    assert conductor.status == "time_limit"


def own_times(run: Run, recorder: Recorder) -> list[float]:
    """Seconds of each step that the rank says it computed for, where rank 1's optimizer is slow."""
    found: list[float] = []
    step = torch.optim.SGD.step

    def slow(self: torch.optim.SGD, closure: object = None) -> object:
        loss = step(self, closure)
        time.sleep(SLOW_SECONDS * run.rank)
        return loss

    def kept(_: Window, samples: int, seconds: float) -> None:
        found.append(seconds)

    with mock.patch.object(torch.optim.SGD, "step", slow), mock.patch.object(Window, "add", kept):
        import_path(run.config.strategy["entry"])(run, recorder)
    return found


def started(config: Config, folder: Path) -> tuple[Run, Recorder]:
    """As `src.worker` hands them to a strategy."""
    rank = int(os.environ["RANK"])
    cores = tuple(sorted(os.sched_getaffinity(0)))[:1]
    run = Run(config, rank, config.workers, arrays.of(config.dataset), folder, cores)
    return run, Recorder(config, rank, folder / str(rank), started=time.time(), tracker=None)


def main() -> None:
    dist.init_process_group("gloo", timeout=PATIENCE)
    for name in sys.argv[1:]:
        config = configuration.load(Path(name))
        with tempfile.TemporaryDirectory() as folder:
            run, recorder = started(config, Path(folder))
            own = median(own_times(run, recorder)[1:])
        assert (own >= SLOW_SECONDS) == (run.rank == 1), f"{name}: rank {run.rank} computes {own:.3f} s"
        print(f"{Path(name).stem}: {own:.3f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        agree(*started(config, Path(folder)))
    leave()


if __name__ == "__main__":
    main()

"""A strategy whose ranks meet in MPI at every step, and compute nothing."""

from __future__ import annotations

import time

import numpy as np

from src.config import ConfigError
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.common.mpi_world import MPIWorld


def train(context: RankContext, recorder: Recorder) -> None:
    """Steps until it is ended, or as long as `strategy.behaviour` says."""
    behaviour = context.config.strategy["behaviour"]
    world = MPIWorld(context, recorder)
    if behaviour == "mistake":
        raise ConfigError("strategy.behaviour=mistake: is one")
    if behaviour == "crash" and context.rank == 1:
        raise RuntimeError("the glue has not dried")
    recorder.facts["steps_per_epoch"] = steps = 60
    recorder.start()
    while behaviour != "end" or recorder.steps < steps:
        # 0 + 1 over two ranks.
        total = world.sum_for_training(np.array([context.rank], "float32"))
        time.sleep(0.005 * (context.rank + 1))
        recorder.step(float(total[0]), context.config.worker_batch, epoch=1)
    recorder.evaluated(epoch=1, train_loss=None, train_accuracy=None, loss=0.0, accuracy=1.0, seconds=0.1)
    world.leave()
    recorder.finish("ok")

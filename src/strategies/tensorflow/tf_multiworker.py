"""MultiWorkerMirroredStrategy: one process for each worker, gradients summed by TensorFlow's collectives.

Keras 3's `fit` doesn't run under this strategy (`fit` can't convert `PerReplica` values), hence a custom
loop.
"""

from __future__ import annotations

import fcntl

from src.measure.recorder import Recorder
from src.run import files
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import custom_loop, setup
from src.runtime.tensorflow.distribution import join_cluster


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this worker's copy of the model on the worker's part of every batch."""
    setup.configure(context)
    alive = (recorder.folder / files.ALIVE).open("w")
    fcntl.flock(alive, fcntl.LOCK_EX)
    setup.keep(alive)
    custom_loop.train_copies(context, recorder, join_cluster(context))
    if context.rank == 0:
        wait_for_others(context)


def wait_for_others(context: RankContext) -> None:
    """Wait in worker 0 until the processes of all other workers have ended.

    Worker 0 leads the cluster: when its process ends, workers that are still in the cluster fail. Each worker
    holds a lock on its file `ALIVE` until its process ends.
    """
    for rank in range(1, context.world_size):
        with (files.rank_folder(context.folder, rank) / files.ALIVE).open() as other:
            fcntl.flock(other, fcntl.LOCK_SH)

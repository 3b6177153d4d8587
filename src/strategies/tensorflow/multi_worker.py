"""MultiWorkerMirroredStrategy: a process a worker, gradients all-reduced by TensorFlow's collectives.

Keras 3's `fit` doesn't run under it (it can't convert `PerReplica` values), hence a loop of our own.
"""

from __future__ import annotations

import fcntl

import tensorflow as tf

from src.measure.recorder import Recorder
from src.runtime.tensorflow import custom_loop
from src.runtime.tensorflow import training as runtime
from src.worker import Run


def train(run: Run, recorder: Recorder) -> None:
    """Trains this worker's copy on its shard of every batch."""
    runtime.configure(run)
    alive = (recorder.folder / "alive").open("w")
    fcntl.flock(alive, fcntl.LOCK_EX)
    runtime.keep(alive)
    custom_loop.train_copies(run, recorder, join(run))
    if run.rank == 0:
        wait_for_others(run, recorder)


def wait_for_others(run: Run, recorder: Recorder) -> None:
    """Until all other workers have ended: worker 0 leads the cluster, and takes along who still is in it.

    A worker's lock goes with its process.
    """
    for rank in range(1, run.world_size):
        with (recorder.folder.parent / str(rank) / "alive").open() as other:
            fcntl.flock(other, fcntl.LOCK_SH)


def join(run: Run) -> tf.distribute.Strategy:
    """The cluster of `TF_CONFIG`, which a process joins once."""
    options = run.config.strategy
    library = tf.distribute.experimental
    communication = library.CommunicationOptions(
        implementation=library.CommunicationImplementation[options["communication"].upper()],
        timeout_seconds=options["timeout_seconds"],
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)

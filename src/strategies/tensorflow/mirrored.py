"""MirroredStrategy: a copy of the model on every device of one process, gradients summed after backward.

`train` is Keras's `fit`, `train_custom` paper 2's custom data parallelism: a distributed step by
`strategy.run` and `strategy.reduce`. Without GPUs the devices are logical CPUs.
"""

from __future__ import annotations

import tensorflow as tf

from src.measure.recorder import Recorder
from src.runtime.tensorflow import custom_loop, keras_fit
from src.runtime.tensorflow import training as runtime
from src.worker import Run


def train(run: Run, recorder: Recorder) -> None:
    """Trains under `fit`."""
    keras_fit.train(run, recorder, _strategy(run))


def train_custom(run: Run, recorder: Recorder) -> None:
    """Trains under a loop of our own."""
    custom_loop.train_copies(run, recorder, _strategy(run))


def _strategy(run: Run) -> tf.distribute.Strategy:
    devices = runtime.configure(run)
    reduction = run.config.strategy["reduction"]
    if reduction == "auto":
        # NCCL has no kernels for CPUs.
        reduction = "nccl" if devices[0].startswith("GPU") else "one_device"
    made = {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
        "one_device": tf.distribute.ReductionToOneDevice,
    }
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=made[reduction]())

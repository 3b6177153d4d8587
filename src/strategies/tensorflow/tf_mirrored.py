"""MirroredStrategy under Keras's `fit`: a copy of the model on every device of one process.

Gradients are summed after backward. Without GPUs the devices are logical CPUs.
"""

from __future__ import annotations

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import keras_fit
from src.runtime.tensorflow.distribution import mirrored_strategy


def train(context: RankContext, recorder: Recorder) -> None:
    """Train a copy of the model on each device of this process by Keras's `fit`."""
    keras_fit.train(context, recorder, mirrored_strategy(context))

"""Paper 2's custom data parallelism: MirroredStrategy's devices under a custom training loop.

The loop takes a distributed step by `strategy.run` and `strategy.reduce`, in place of Keras's `fit`.
"""

from __future__ import annotations

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import custom_loop
from src.runtime.tensorflow.distribution import mirrored_strategy


def train(context: RankContext, recorder: Recorder) -> None:
    """Train a copy of the model on each device of this process by a custom loop."""
    custom_loop.train_copies(context, recorder, mirrored_strategy(context))

"""One device under TensorFlow, trained by a custom `tf.function` loop or by Keras's `fit`."""

from __future__ import annotations

import tensorflow as tf

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import custom_loop, keras_fit, setup


def train(context: RankContext, recorder: Recorder) -> None:
    """Train the model on this rank's one device."""
    setup.configure(context)
    loops = {"custom": custom_loop.train_copies, "fit": keras_fit.train}
    loops[context.config.strategy["loop"]](context, recorder, tf.distribute.get_strategy())

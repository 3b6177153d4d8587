"""One device under TensorFlow: a custom `tf.function` loop, or Keras's `fit`."""

from __future__ import annotations

import tensorflow as tf

from src.measure.recorder import Recorder
from src.runtime.tensorflow import custom_loop, keras_fit
from src.runtime.tensorflow import training as runtime
from src.worker import Run


def train(run: Run, recorder: Recorder) -> None:
    """Trains on the rank's one device."""
    runtime.configure(run)
    train_on = {"custom": custom_loop.train_copies, "fit": keras_fit.train}[run.config.strategy["loop"]]
    train_on(run, recorder, tf.distribute.get_strategy())

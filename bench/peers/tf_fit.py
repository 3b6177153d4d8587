"""Train by a plain `model.fit` on `tf.data.Dataset.from_tensor_slices`."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from common import Clock, arguments, training_arrays

args = arguments()
clock = Clock(args)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
images, labels = training_arrays(args.data)
images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels))
data = data.batch(args.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(20, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(50, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(500, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    keras.optimizers.SGD(0.01, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)


class Count(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        if batch == 0:
            clock.begin()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if clock.step():
            self.model.stop_training = True


model.fit(data, steps_per_epoch=args.steps, epochs=1, verbose=0, callbacks=[Count()])
clock.report()

"""Build paper 5's shallow network (section III.B) in Keras, with as many parameters as in torch."""

from __future__ import annotations

import keras


def build(*, classes: int, shape: tuple[int, int, int]) -> keras.Model:
    """Build a model of images [batch, height, width, channels] with logits [batch, classes].

    `shape` is (height, width, channels).
    """
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(20, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(50, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(500, activation="relu"),
            keras.layers.Dense(classes),
        ]
    )

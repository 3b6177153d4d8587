"""Build paper 2's network in Keras: flatten, dense with ReLU, dropout, classes."""

from __future__ import annotations

import keras


def build(*, classes: int, shape: tuple[int, int, int], hidden: int, dropout: float) -> keras.Model:
    """Build a model of images [batch, height, width, channels] with logits [batch, classes].

    `shape` is (height, width, channels).
    """
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Flatten(),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(classes),
        ]
    )

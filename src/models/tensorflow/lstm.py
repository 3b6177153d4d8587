"""Build an LSTM (Hochreiter & Schmidhuber 1997) that reads an image row by row, in Keras."""

from __future__ import annotations

import keras


def build(*, classes: int, shape: tuple[int, int, int], hidden: int, layers: int) -> keras.Model:
    """Build a model of images [batch, height, width, channels] with logits [batch, classes].

    Each row is a step of time; its features are the row's pixels. `shape` is (height, width, channels), and
    there are `layers` layers of `hidden` units.
    """
    height, width, channels = shape
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Reshape((height, width * channels)),
            *(keras.layers.LSTM(hidden, return_sequences=True) for _ in range(layers - 1)),
            keras.layers.LSTM(hidden),
            keras.layers.Dense(classes),
        ]
    )

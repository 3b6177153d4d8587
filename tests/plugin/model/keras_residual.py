"""A small Keras model with BatchNorm and shortcuts."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


def build(*, classes: int, shape: tuple[int, ...]) -> keras.Model:
    """Three blocks, the second of which halves the image."""
    inputs = keras.Input(shape)
    x = normalised(inputs, 4, 2)
    for width, stride in ((4, 1), (8, 2), (8, 1)):
        shortcut = x if stride == 1 else normalised(x, width, stride)
        x = layers.ReLU()(normalised(x, width, stride))
        x = layers.ReLU()(layers.add([normalised(x, width, 1), shortcut]))
    return keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))


def normalised(x: Any, width: int, stride: int) -> Any:
    x = layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9)(x)

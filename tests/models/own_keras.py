"""Keras models as users write them."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


class Subclassed(keras.Model):
    """Has no weights before its first call, and takes no `training`."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.flat, self.dense = layers.Flatten(), layers.Dense(classes)

    def call(self, images: Any) -> Any:
        return self.dense(self.flat(images))


class OwnStep(Subclassed):
    """Has a step of its own."""

    def train_step(self, data: Any) -> Any:
        raise AssertionError("it was called")


def unbuilt(classes: int) -> keras.Model:
    return keras.Sequential([layers.Flatten(), layers.Dense(classes)])


def dense(shape: tuple[int, ...], *outputs: Any) -> keras.Model:
    images = keras.Input(shape)
    hidden = layers.Dense(16, activation="relu")(layers.Flatten()(images))
    results = [output(hidden) for output in outputs]
    return keras.Model(images, results[0] if len(results) == 1 else results)


def two_outputs(classes: int, shape: tuple[int, ...]) -> keras.Model:
    return dense(shape, layers.Dense(classes), layers.Dense(2))


def five_outputs(shape: tuple[int, ...]) -> keras.Model:
    return dense(shape, layers.Dense(5))


def softmax(classes: int, shape: tuple[int, ...]) -> keras.Model:
    return dense(shape, layers.Dense(classes, activation="softmax"))


def stateful(classes: int, shape: tuple[int, ...]) -> keras.Model:
    images = keras.Input(batch_shape=(32, *shape))
    rows = layers.Reshape((shape[0], shape[1] * shape[2]))(images)
    return keras.Model(images, layers.Dense(classes)(layers.GRU(8, stateful=True)(rows)))


def regularised(classes: int, shape: tuple[int, ...]) -> keras.Model:
    penalty = keras.regularizers.L2(0.05)
    images = keras.Input(shape)
    hidden = layers.Dense(16, activation="relu", kernel_regularizer=penalty)(layers.Flatten()(images))
    return keras.Model(images, layers.Dense(classes, kernel_regularizer=penalty)(hidden))


class Forgetful(layers.Layer):
    """Has a factor that its configuration lacks."""

    factor = 1.0

    def call(self, values: Any) -> Any:
        return values * self.factor


def forgetful(classes: int, shape: tuple[int, ...]) -> keras.Model:
    images = keras.Input(shape)
    layer = Forgetful()
    layer.factor = 2.0
    return keras.Model(images, layer(layers.Dense(classes)(layers.Flatten()(images))))


class Counting(layers.Layer):
    """Counts its calls in training."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, values: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1)
        return values


class Centred(layers.Layer):
    """Takes the mean of the batch away, in training."""

    def call(self, values: Any, training: bool = False) -> Any:
        return values - keras.ops.mean(values, axis=0, keepdims=True) if training else values


def behind(*behind: layers.Layer, classes: int, shape: tuple[int, ...]) -> keras.Model:
    """Return a convolutional model with layers before its last one."""
    images = keras.Input(shape)
    hidden = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(images))
    for layer in behind:
        hidden = layer(hidden)
    return keras.Model(images, layers.Dense(classes)(hidden))


def dropout(classes: int, shape: tuple[int, ...]) -> keras.Model:
    return behind(layers.Dropout(0.5), classes=classes, shape=shape)


def normalised(classes: int, shape: tuple[int, ...]) -> keras.Model:
    return behind(layers.BatchNormalization(), classes=classes, shape=shape)


def counting(classes: int, shape: tuple[int, ...]) -> keras.Model:
    return behind(Counting(name="counting"), layers.BatchNormalization(), classes=classes, shape=shape)


def centred(classes: int, shape: tuple[int, ...]) -> keras.Model:
    return behind(Centred(), classes=classes, shape=shape)


def synchronised(classes: int, shape: tuple[int, ...]) -> keras.Model:
    norm = layers.BatchNormalization(synchronized=True, name="norm")
    return behind(norm, classes=classes, shape=shape)


def masked(classes: int, shape: tuple[int, ...]) -> keras.Model:
    images = keras.Input(shape)
    dark = keras.ops.cast(layers.Flatten()(images) > 0, "int32")
    words = layers.Embedding(2, 8, mask_zero=True)(dark)
    return keras.Model(images, layers.Dense(classes)(layers.GlobalAveragePooling1D()(words)))


def drawing(classes: int, shape: tuple[int, ...]) -> keras.Model:
    """Return a model that draws random numbers in evaluation, too."""
    images = keras.Input(shape)
    hidden = layers.Dropout(0.5)(layers.Flatten()(images), training=True)
    return keras.Model(images, layers.Dense(classes)(hidden))

"""Look at what a Keras model does in training by which its losses may depend on how batches are divided.

Nothing is concluded from names: the model is called on a few samples, and left as it was. For torch models
`src.runtime.torch.model_look` does the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from src.compat.keras import layers_of, seeds_of
from src.measure.rank_record import RankRecord

BatchNorm = keras.layers.BatchNormalization
# The largest relative norm by which a sample's outputs may differ by rounding.
ROUNDING = 1e-4


def facts(model: keras.Model, images: tf.Tensor) -> RankRecord:
    """Return what a call in training does: `draws_random_numbers` and what follows it in `RankRecord`.

    Args:
        model: the whole model, in no distribution strategy.
        images: a few samples, as it takes them [samples, height, width, channels].
    """
    half = len(images) // 2
    with unchanged(model):
        before = [(variable, variable.numpy()) for variable in _state(model)]
        whole = _call(model, images)
        changed = [variable for variable, value in before if not np.array_equal(variable, value)]
    seeds = {id(seed) for seed in seeds_of(model)}
    with unchanged(model):
        draws = any(id(variable) in seeds for variable in changed) or not np.array_equal(
            whole, _call(model, images)
        )
    over_batch = False
    if half and not draws:
        with unchanged(model), _frozen_batchnorm(model):
            together, alone = _call(model, images), _call(model, images[:half])
        gap = np.linalg.norm(alone - together[:half])
        over_batch = bool(gap > ROUNDING * np.linalg.norm(together[:half]))
    layers = [layer for layer in layers_of(model) if isinstance(layer, BatchNorm)]
    known = seeds | {id(variable) for layer in layers for variable in layer.variables}
    return {
        "draws_random_numbers": draws,
        "moves_buffers": sorted(variable.path for variable in changed if id(variable) not in known),
        "computes_over_batch": over_batch,
    }


@contextlib.contextmanager
def unchanged(model: keras.Model) -> Iterator[None]:
    """Have all variables of a model be after the block what they are before it, those of its seeds, too."""
    values = [(variable, variable.numpy()) for variable in _state(model)]
    try:
        yield
    finally:
        for variable, value in values:
            variable.assign(value)


def _call(model: keras.Model, images: tf.Tensor) -> np.ndarray:
    (outputs,) = tf.nest.flatten(model(images, training=True))
    return np.asarray(outputs, dtype=np.float64)


def _state(model: keras.Model) -> list[keras.Variable]:
    return list({id(each): each for each in (*model.variables, *seeds_of(model))}.values())


@contextlib.contextmanager
def _frozen_batchnorm(model: keras.Model) -> Iterator[None]:
    """Have BatchNorm evaluate within the block, which it does where it isn't trained."""
    layers = [layer for layer in layers_of(model) if isinstance(layer, BatchNorm) and layer.trainable]
    for layer in layers:
        layer.trainable = False
    try:
        yield
    finally:
        for layer in layers:
            layer.trainable = True

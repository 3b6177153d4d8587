"""Pass a few samples through a Keras model and through stages of it, and compare what they compute.

Stages are copies that Keras makes of layers from their configurations, and a layer of the user's own may have
state that its configuration lacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from src.config import ConfigError
from src.partition.keras.graph import operations

# The largest relative norm of a difference.
BOUND = 1e-5
# A model of fewer operations is cut between any two of them.
STAGES = 64
# A gradient below this share of all of them is rounding for the most part, and is compared with the share.
SMALL = 1e-3
SEED = 0


def check(model: keras.Model, images: tf.Tensor) -> None:
    """Compare outputs and gradients of the uncut model with those through many stages, as in evaluation.

    A model that computes something else each time, also in evaluation, isn't compared.

    Args:
        model: the whole model.
        images: a few samples, as it takes them [samples, height, width, channels].

    Raises:
        ConfigError: when the model can't be cut, or computes something else in stages.
    """
    graph = operations(model)
    count = len(graph.nodes)
    places = sorted({round(count * stage / min(count, STAGES)) for stage in range(min(count, STAGES) + 1)})
    try:
        stages = [graph.stage(start, stop) for start, stop in itertools.pairwise(places)]
    except ValueError as error:
        # Masks belong to a graph's tensors, and not to those that cross a boundary.
        raise ConfigError(
            f"the model can't be cut: Keras can't make stages of its layers ({error})"
        ) from error
    # Operations that aren't layers have no variables, and no place among a model's layers.
    names = [node.operation.name if _trained(node.operation) else None for node in graph.nodes]
    own = [variable for node in graph.nodes for variable in _trained(node.operation)]
    copies = [
        variable
        for stage, (start, stop) in zip(stages, itertools.pairwise(places), strict=True)
        for name in names[start:stop]
        if name is not None
        for variable in _trained(stage.get_layer(name))
    ]
    whole, again, cut = (
        _pass(parts, variables, images)
        for parts, variables in (([graph.model], own), ([graph.model], own), (stages, copies))
    )
    if not np.array_equal(whole[0], again[0]):
        return
    least = SMALL * np.sqrt(sum(np.linalg.norm(gradient) ** 2 for gradient in whole[1:]))
    said = ["an output", *(f"the gradient of {variable.path}" for variable in own)]
    for place, (what, one, other) in enumerate(zip(said, whole, cut, strict=True)):
        norm = max(np.linalg.norm(one), least if place else 0.0)
        if not np.linalg.norm(one - other) <= BOUND * norm:
            raise ConfigError(f"the model can't be cut as it is: {what} is another one in stages")


def _pass(parts: Sequence[keras.Model], variables: Sequence[Any], images: tf.Tensor) -> list[np.ndarray]:
    """Return outputs, and the gradients of their sum, randomly weighted, by the variables of the parts."""
    with tf.GradientTape() as tape:
        passed = [images]
        for part in parts:
            # Only values cross to another device, and not what Keras has noted on a tensor, as its mask.
            passed = tf.nest.flatten(part([tf.identity(tensor) for tensor in passed], training=False))
        weights = np.random.default_rng(SEED).normal(size=passed[0].shape)
        total = tf.reduce_sum(tf.cast(passed[0], tf.float32) * weights.astype(np.float32))
    gradients = tape.gradient(total, variables, unconnected_gradients="zero")
    # An embedding has sparse ones.
    return [np.asarray(tf.convert_to_tensor(each), np.float64) for each in (passed[0], *gradients)]


def _trained(operation: keras.Operation) -> list[keras.Variable]:
    """Return the variables that an operation has and that are trained."""
    return list(getattr(operation, "trainable_variables", ()))

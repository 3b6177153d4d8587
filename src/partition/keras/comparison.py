"""Pass a few samples through a Keras model and through stages of it, and compare what they compute.

Stages are copies that Keras makes of layers from their configurations, and a layer of the user's own may have
state that its configuration lacks.
"""

from __future__ import annotations

import itertools

import keras
import numpy as np
import tensorflow as tf

from src.config import ConfigError
from src.partition.keras.graph import operations

# The largest relative norm of a difference.
BOUND = 1e-5
# A model of fewer operations is cut between any two of them.
STAGES = 64
SEED = 0


def check(model: keras.Model, images: tf.Tensor) -> None:
    """Compare outputs and gradients of the uncut model with those through many stages, as in evaluation.

    Args:
        model: the whole model.
        images: a few samples, as it takes them [samples, height, width, channels].

    Raises:
        ConfigError: when the model can't be cut, or computes something else in stages.
    """
    graph = operations(model)
    count = len(graph.nodes)
    places = sorted({round(count * stage / min(count, STAGES)) for stage in range(min(count, STAGES) + 1)})
    stages = [graph.stage(start, stop) for start, stop in itertools.pairwise(places)]
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
    weights = tf.constant(np.random.default_rng(SEED).normal(size=(len(images), 1)), tf.float32)
    results = []
    for parts, variables in (([graph.model], own), (stages, copies)):
        with tf.GradientTape() as tape:
            passed = [images]
            for part in parts:
                passed = tf.nest.flatten(part(passed, training=False))
            total = tf.reduce_sum(tf.cast(passed[0], tf.float32) * weights)
        results.append([passed[0], *tape.gradient(total, variables, unconnected_gradients="zero")])
    said = ["an output", *(f"the gradient of {variable.path}" for variable in own)]
    for what, whole, cut in zip(said, *results, strict=True):
        # An embedding has sparse ones.
        whole, cut = (np.asarray(tf.convert_to_tensor(each), np.float64) for each in (whole, cut))
        norm = np.linalg.norm(whole)
        if not np.linalg.norm(whole - cut) <= BOUND * norm:
            raise ConfigError(f"the model can't be cut as it is: {what} is another one in stages")


def _trained(operation: keras.Operation) -> list[keras.Variable]:
    """Return the variables that an operation has and that are trained."""
    return list(getattr(operation, "trainable_variables", ()))

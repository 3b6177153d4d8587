"""A Keras model as operations in order, and its stages: sub-models between the tensors that are live there.

The twin of `graph.py`: boundary b lies before operation b, and what is computed before it and read after
it crosses it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from src.config import ConfigError
from src.partition.outline import Costs, Crossing, Link, Outline

ROUNDS = 5
LINK_BYTES = (4 * 2**10, 4 * 2**20)
LINK_ROUNDS = 11


@dataclass(frozen=True)
class KerasGraph:
    """A functional model; `nodes` are its operations' calls, `live` the tensors at each boundary."""

    model: keras.Model
    nodes: tuple[Any, ...]
    live: tuple[tuple[Any, ...], ...]

    def outline(self, batch: int) -> Outline:
        """What a plan needs to know, for a micro-batch of this size."""
        crossing = tuple(
            tuple(Crossing(t.name, _nbytes(t, batch), requires_grad=bool(place)) for t in tensors)
            for place, tensors in enumerate(self.live)
        )
        return Outline(tuple(node.operation.name for node in self.nodes), crossing)

    def stage(self, start: int, stop: int) -> keras.Model:
        """Operations `start` to `stop` - 1 with weights of their own: lists of live tensors in and out."""
        part = keras.Model(list(self.live[start]), list(self.live[stop]))
        copy = keras.models.clone_model(part)
        copy.set_weights(part.get_weights())
        return copy


def operations(model: keras.Model) -> KerasGraph:
    """The operations of a Sequential or functional model.

    Raises:
        ConfigError: for a model that isn't one, or that uses a layer's weights in several places.
    """
    if not model.inputs or not getattr(model, "outputs", None):
        raise ConfigError("the model can't be cut: it is no Sequential or functional Keras model")
    whole = keras.Model(model.inputs, model.outputs)
    if len(whole.inputs) != 1 or len(whole.outputs) != 1:
        raise ConfigError("the model can't be cut: it must have one input and one tensor of logits")
    by_depth = whole._nodes_by_depth
    nodes = [
        node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input
    ]
    names = [node.operation.name for node in nodes if node.operation.weights]
    shared = sorted({name for name in names if names.count(name) > 1})
    if shared:
        raise ConfigError(f"the model can't be cut: {shared[0]} is used in several places")
    return KerasGraph(whole, tuple(nodes), tuple(_live(whole, nodes, b) for b in range(len(nodes) + 1)))


def _live(model: keras.Model, nodes: Sequence[Any], place: int) -> tuple[Any, ...]:
    if place == len(nodes):
        return tuple(model.outputs)
    known = [*model.inputs, *(tensor for node in nodes[:place] for tensor in node.outputs)]
    read = {id(tensor) for node in nodes[place:] for tensor in node.arguments.keras_tensors}
    read |= {id(tensor) for tensor in model.outputs}
    return tuple(tensor for tensor in known if id(tensor) in read)


def _nbytes(tensor: Any, batch: int) -> int:
    return batch * math.prod(tensor.shape[1:]) * tf.as_dtype(tensor.dtype).size


def costs(graph: KerasGraph, images: tf.Tensor) -> Costs:
    """Measures every operation by itself, forward and backward in one compiled function; weights are left
    as they were.

    What backward keeps is estimated as every operation's result.
    """
    before = graph.model.get_weights()
    taken = _seconds(graph, images)
    graph.model.set_weights(before)
    trained = [[math.prod(v.shape) for v in node.operation.trainable_variables] for node in graph.nodes]
    weights = [sum(math.prod(v.shape) for v in node.operation.variables) for node in graph.nodes]
    size = tf.as_dtype(keras.config.floatx()).size
    kept = [sum(_nbytes(t, len(images)) for t in node.outputs) for node in graph.nodes]
    return Costs(
        taken,
        np.array([sum(counts) for counts in trained], dtype=float),
        np.array(weights, dtype=float) * size,
        np.array(kept, dtype=float),
    )


def _seconds(graph: KerasGraph, images: tf.Tensor) -> np.ndarray:
    """Median seconds of each operation, array [operations]."""
    known: dict[int, Any] = {id(graph.model.inputs[0]): images}
    medians = []
    for place, node in enumerate(graph.nodes):
        # Nobody asks for the images' gradient.
        compiled = _both_passes(node, of_inputs=place > 0)
        given = [known[id(tensor)] for tensor in node.arguments.keras_tensors]
        found, _ = compiled(given)  # traced, and its caches filled
        taken = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            _wait(compiled(given))
            taken.append(time.perf_counter() - start)
        medians.append(float(np.median(taken)))
        known |= {id(tensor): value for tensor, value in zip(node.outputs, found, strict=True)}
    return np.array(medians)


def _both_passes(node: Any, *, of_inputs: bool) -> Any:
    """An operation's results and gradients, as one function of its inputs."""

    @tf.function
    def compiled(given: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        named = {id(tensor): value for tensor, value in zip(node.arguments.keras_tensors, given, strict=True)}
        args, kwargs = node.arguments.fill_in(named)
        if getattr(node.operation, "_call_has_training_arg", False):
            kwargs["training"] = True
        with tf.GradientTape() as tape:
            tape.watch(given)
            found = tf.nest.flatten(node.operation(*args, **kwargs))
        sources = [*(given if of_inputs else []), *(v.value for v in node.operation.trainable_variables)]
        return found, [g for g in tape.gradient(found, sources) if g is not None]

    return compiled


def _wait(tensors: Any) -> None:
    """Until a device has computed them: a GPU returns before."""
    for tensor in tf.nest.flatten(tensors):
        if "GPU" in tensor.device:
            tf.reduce_sum(tensor).numpy()


def link(devices: Sequence[str]) -> Link:
    """Measures a copy from the first device to the second."""
    if len(devices) < 2:
        return Link(0.0, 0.0)
    medians = []
    for size in LINK_BYTES:
        with tf.device(devices[0]):
            tensor = tf.zeros(size // 4)
        taken = []
        for _ in range(LINK_ROUNDS):
            start = time.perf_counter()
            with tf.device(devices[1]):
                _wait(tf.identity(tensor))
            taken.append(time.perf_counter() - start)
        medians.append(float(np.median(taken)))
    per_byte = max(0.0, medians[1] - medians[0]) / (LINK_BYTES[1] - LINK_BYTES[0])
    return Link(max(0.0, medians[0] - LINK_BYTES[0] * per_byte), per_byte)

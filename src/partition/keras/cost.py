"""Measure the cost of each operation of a Keras model, and of a copy between two devices of a process."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from src.compat.keras import takes_training
from src.partition.keras.graph import KerasGraph, tensor_bytes
from src.partition.model_profile import Costs, Link

ROUNDS = 5
LINK_BYTES = (4 * 2**10, 4 * 2**20)
LINK_ROUNDS = 11


def costs(graph: KerasGraph, images: tf.Tensor) -> Costs:
    """Measure the costs of every operation by itself, forward and backward in one compiled function.

    `images` is a micro-batch [batch, height, width, channels]. Weights are left as they were. The bytes kept
    for backward are estimated: they are those of every operation's result.
    """
    before = graph.model.get_weights()
    taken = _seconds(graph, images)
    graph.model.set_weights(before)
    trained = [[math.prod(v.shape) for v in node.operation.trainable_variables] for node in graph.nodes]
    weights = [sum(math.prod(v.shape) for v in node.operation.variables) for node in graph.nodes]
    size = tf.as_dtype(keras.config.floatx()).size
    result_bytes = [sum(tensor_bytes(t, len(images)) for t in node.outputs) for node in graph.nodes]
    return Costs(
        taken,
        np.array([sum(counts) for counts in trained], dtype=float),
        np.array(weights, dtype=float) * size,
        np.array(result_bytes, dtype=float),
    )


def _seconds(graph: KerasGraph, images: tf.Tensor) -> np.ndarray:
    """Measure the median seconds of each operation, array [operations]."""
    known: dict[int, Any] = {id(graph.model.inputs[0]): images}
    medians = []
    for place, node in enumerate(graph.nodes):
        # The images' gradient isn't needed.
        compiled = _both_passes(node, of_inputs=place > 0)
        inputs = [known[id(tensor)] for tensor in node.arguments.keras_tensors]
        results, _ = compiled(inputs)  # traced, and its caches filled
        taken = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            _wait(compiled(inputs))
            taken.append(time.perf_counter() - start)
        medians.append(float(np.median(taken)))
        known |= {id(tensor): value for tensor, value in zip(node.outputs, results, strict=True)}
    return np.array(medians)


def _both_passes(node: Any, *, of_inputs: bool) -> Any:
    """Compile a function from an operation's inputs to its results and gradients."""

    @tf.function
    def compiled(inputs: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        named = {
            id(tensor): value for tensor, value in zip(node.arguments.keras_tensors, inputs, strict=True)
        }
        args, kwargs = node.arguments.fill_in(named)
        if takes_training(node.operation):
            kwargs["training"] = True
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            results = tf.nest.flatten(node.operation(*args, **kwargs))
        sources = [*(inputs if of_inputs else []), *(v.value for v in node.operation.trainable_variables)]
        return results, [g for g in tape.gradient(results, sources) if g is not None]

    return compiled


def _wait(tensors: Any) -> None:
    """Wait until the tensors are computed: a call on a GPU returns earlier."""
    for tensor in tf.nest.flatten(tensors):
        if "GPU" in tensor.device:
            tf.reduce_sum(tensor).numpy()


def link(devices: Sequence[str]) -> Link:
    """Measure a copy from the first to the second of devices by name; without a second it takes no time."""
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

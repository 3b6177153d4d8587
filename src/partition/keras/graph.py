"""Divide a Keras model into operations in order, and cut stages at any boundary between two of them.

Boundary b lies before operation b. Every tensor that is computed before a boundary and read after it is live
there and crosses it: a stage is a model between the live tensors of its two boundaries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from src.compat.keras import calls_in_order
from src.config import ConfigError
from src.partition.model_profile import LiveTensor, ModelProfile


@dataclass(frozen=True)
class KerasGraph:
    """A functional model divided into operations.

    Attributes:
        model: the whole model.
        nodes: the calls of its operations, in order.
        live: the live tensors at each boundary, one more than operations.
    """

    model: keras.Model
    nodes: tuple[Any, ...]
    live: tuple[tuple[Any, ...], ...]

    def profile(self, batch: int) -> ModelProfile:
        """Return the profile that a plan needs, for micro-batches of `batch` samples."""
        crossing = tuple(
            tuple(LiveTensor(t.name, tensor_bytes(t, batch), requires_grad=bool(place)) for t in tensors)
            for place, tensors in enumerate(self.live)
        )
        return ModelProfile(tuple(node.operation.name for node in self.nodes), crossing)

    def stage(self, start: int, stop: int) -> keras.Model:
        """Make a model of operations `start` to `stop` - 1, with weights of its own, between live tensors."""
        part = keras.Model(list(self.live[start]), list(self.live[stop]))
        copy = keras.models.clone_model(part)
        copy.set_weights(part.get_weights())
        return copy


def operations(model: keras.Model) -> KerasGraph:
    """Divide a Sequential or functional model into operations in order.

    Raises:
        ConfigError: for another kind of model, one with several inputs or outputs, or one that uses a layer's
            weights in several places.
    """
    if not getattr(model, "inputs", None) or not getattr(model, "outputs", None):
        raise ConfigError("the model can't be cut: it is no Sequential or functional Keras model")
    whole = keras.Model(model.inputs, model.outputs)
    if len(whole.inputs) != 1 or len(whole.outputs) != 1:
        raise ConfigError("the model can't be cut: it must have one input and one tensor of logits")
    nodes = calls_in_order(whole)
    names = [node.operation.name for node in nodes if getattr(node.operation, "weights", ())]
    shared = sorted({name for name in names if names.count(name) > 1})
    if shared:
        raise ConfigError(f"the model can't be cut: {shared[0]} is used in several places")
    return KerasGraph(whole, tuple(nodes), tuple(_live(whole, nodes, b) for b in range(len(nodes) + 1)))


def _live(model: keras.Model, nodes: Sequence[Any], place: int) -> tuple[Any, ...]:
    """Return the tensors that are computed before `nodes[place]` and read from there on."""
    if place == len(nodes):
        return tuple(model.outputs)
    known = [*model.inputs, *(tensor for node in nodes[:place] for tensor in node.outputs)]
    read = {id(tensor) for node in nodes[place:] for tensor in node.arguments.keras_tensors}
    read |= {id(tensor) for tensor in model.outputs}
    return tuple(tensor for tensor in known if id(tensor) in read)


def tensor_bytes(tensor: Any, batch: int) -> int:
    """Return the bytes of a Keras tensor for `batch` samples."""
    return batch * math.prod(tensor.shape[1:]) * tf.as_dtype(tensor.dtype).size

"""Wrap private parts of Keras: a model's calls in order, and its layers within layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras


def calls_in_order(model: keras.Model) -> list[Any]:
    """Return the calls of a functional model's operations, each after those whose results it reads."""
    by_depth = model._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input]


def takes_training(operation: keras.Operation) -> bool:
    """Return whether a call of `operation` takes `training=`."""
    return bool(getattr(operation, "_call_has_training_arg", False))


def layers_of(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yield the layers of `model`, those within others included."""
    yield from model._flatten_layers()

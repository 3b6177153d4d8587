"""A Keras variable that TensorFlow has cut into shards, seen as their list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def shards(variable: keras.Variable) -> list[tf.Variable]:
    """The variables of which one is made up: itself, or its shards in the order of their rows."""
    return list(getattr(variable.value, "variables", [variable.value]))


def split(value: Any, variable: keras.Variable) -> list[Any]:
    """A value of the whole variable, in the pieces of its shards."""
    parts = shards(variable)
    return [value] if len(parts) == 1 else tf.split(value, [int(part.shape[0]) for part in parts])


def joined(parts: Sequence[Any]) -> np.ndarray:
    """The value of a variable that these make up."""
    values = [part.numpy() for part in parts]
    return values[0] if len(values) == 1 else np.concatenate(values)

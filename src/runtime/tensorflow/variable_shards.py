"""Convert between a Keras variable and the shards that TensorFlow has cut it into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def shards_of(variable: keras.Variable) -> list[tf.Variable]:
    """Return the TensorFlow variables of a Keras variable: one, or its shards in the order of their rows."""
    return list(getattr(variable.value, "variables", [variable.value]))


def split_value(value: Any, variable: keras.Variable) -> list[Any]:
    """Split a value of the whole variable along the first axis, into one piece for each shard."""
    parts = shards_of(variable)
    return [value] if len(parts) == 1 else tf.split(value, [int(part.shape[0]) for part in parts])


def join_shards(parts: Sequence[Any]) -> np.ndarray:
    """Return the value of a whole variable, from its shards in the order of their rows."""
    values = [part.numpy() for part in parts]
    return values[0] if len(values) == 1 else np.concatenate(values)

"""Any Keras model by its import path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import keras

from src.models.adapt import accepted, import_path


def build(*, classes: int, shape: tuple[int, int, int], path: str, options: Mapping[str, Any]) -> keras.Model:
    """The model that the callable at `path` returns, given `options` and what it takes of `classes`,
    `num_classes`, `shape` and `input_shape`; it must return logits.

    Raises:
        TypeError: when `path` doesn't name a callable that returns a Keras model.
    """
    factory = import_path(path)
    if not callable(factory):
        raise TypeError(f"model.path={path} is a {type(factory).__name__}, not a callable")
    given = {"classes": classes, "num_classes": classes, "shape": shape, "input_shape": shape}
    model = factory(**{**accepted(inspect.signature(factory), given), **options})
    if not isinstance(model, keras.Model):
        raise TypeError(f"model.path={path} returned a {type(model).__name__}, not a keras.Model")
    return model

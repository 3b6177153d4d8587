"""Build any Keras model by its import path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

import keras

from src.models.adapt import accepted


def build(*, classes: int, shape: tuple[int, int, int], path: str, options: Mapping[str, Any]) -> keras.Model:
    """Build a model by the callable at the import path `path`; the model must return logits.

    The callable is called with `options`, and with those of `classes`, `num_classes`, `shape` and
    `input_shape` that it takes and `options` don't hold.

    Raises:
        TypeError: when `path` doesn't name a callable that returns a Keras model.
    """
    factory = resolve_name(path)
    if not callable(factory):
        raise TypeError(f"model.path={path} is a {type(factory).__name__}, not a callable")
    arguments = {"classes": classes, "num_classes": classes, "shape": shape, "input_shape": shape}
    model = factory(**{**accepted(inspect.signature(factory), arguments), **options})
    if not isinstance(model, keras.Model):
        raise TypeError(f"model.path={path} returned a {type(model).__name__}, not a keras.Model")
    return model

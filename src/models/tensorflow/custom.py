"""Build any Keras model by its import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from src.models import adapt


def build(*, classes: int, shape: tuple[int, int, int], path: str, options: Mapping[str, Any]) -> keras.Model:
    """Build a model by the callable at the import path `path`; the model must return logits.

    The callable is called with `options`, and with those of `classes`, `num_classes`, `shape` and
    `input_shape` that it takes and `options` don't hold.

    Raises:
        ConfigError: when `path` doesn't name a callable that takes `options` and returns a Keras model.
    """
    arguments = {"classes": classes, "num_classes": classes, "shape": shape, "input_shape": shape}
    model = adapt.call(path, arguments, options)
    adapt.check_kind(path, model, keras.Model)
    return model

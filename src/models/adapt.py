"""Build the configured model, and call builders by import path, in either framework."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from src.config import Config


def accepted(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `arguments` that a callable takes by name.

    `num_classes` also goes into `**kwargs`, if there is no parameter `classes`.
    """
    names = {p.name for p in signature.parameters.values()}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    return {
        name: value
        for name, value in arguments.items()
        if name in names or (open_ended and name == "num_classes" and "classes" not in names)
    }


def build(config: Config, *, classes: int, shape: tuple[int, int, int]) -> Any:
    """Build the configured model, of images with `shape` (height, width, channels).

    The builder is called with the options of the model's YAML. It draws weights from the framework's
    generator, which the caller seeds.
    """
    described = ("name", "torch", "tensorflow", "allowed")
    options = {key: value for key, value in config.model.items() if key not in described}
    return resolve_name(config.model[config.framework])(classes=classes, shape=shape, **options)

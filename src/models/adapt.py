"""What any builder by import path is given, in either framework."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from src.config import Config


def import_path(path: str) -> Any:
    """The object at `package.module.name`."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def accepted(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `given` that a callable takes by name; `num_classes` also through `**kwargs`."""
    names = {p.name for p in signature.parameters.values()}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    return {
        name: value
        for name, value in given.items()
        if name in names or (open_ended and name == "num_classes" and "classes" not in names)
    }


def build(config: Config, *, classes: int, shape: tuple[int, int, int]) -> Any:
    """The configured model, unseeded: seed first. The builder is given the options of the model's file."""
    described = ("name", "torch", "tensorflow", "allowed")
    options = {key: value for key, value in config.model.items() if key not in described}
    return import_path(config.model[config.framework])(classes=classes, shape=shape, **options)

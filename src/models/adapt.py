"""Build the configured model, and call builders by import path, in either framework."""

from __future__ import annotations

import errno
import inspect
import socket
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from src.config import Config, ConfigError
from src.machine import namespaces

# Errors of connections where there is no network but the loopback interface.
UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED)


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

    Raises:
        ConfigError: where the builder wants to download something, in a run that has no network.
    """
    described = ("name", "torch", "tensorflow", "allowed")
    options = {key: value for key, value in config.model.items() if key not in described}
    try:
        return resolve_name(config.model[config.framework])(classes=classes, shape=shape, **options)
    except Exception as error:
        if not namespaces.inside() or (failure := _network_failure(error)) is None:
            raise
        raise ConfigError(
            f"model={config.model['name']}: wants to download something, and this run's namespace has "
            f"no network ({failure}); hardware.isolate=never lets it"
        ) from error


def _network_failure(error: BaseException | None) -> OSError | None:
    """Return the failure to reach a network that has led to an error, `None` if none has."""
    while error is not None:
        if isinstance(error, socket.gaierror) or (isinstance(error, OSError) and error.errno in UNREACHABLE):
            return error
        error = error.__cause__ or error.__context__
    return None

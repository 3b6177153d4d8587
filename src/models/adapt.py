"""Build the configured model, and call builders by import path, in either framework."""

from __future__ import annotations

import errno
import inspect
import socket
from collections.abc import Callable, Mapping
from typing import Any

from src.config import Config, ConfigError
from src.config.import_paths import resolve
from src.config.keys import key_of
from src.config.mistakes import nearest
from src.machine import namespaces

# Builders that know them, as Keras's, would take pretrained weights and end in a softmax.
UNLIKE_DEFAULTS = {"weights": None, "classifier_activation": None}
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


def build(
    config: Config,
    *,
    classes: int,
    shape: tuple[int, ...],
    train_samples: int | None = None,
    vocabulary: int | None = None,
) -> Any:
    """Build the configured model, of inputs with `shape`: (height, width, channels) of images.

    The builder is called with the options of the model's YAML, and with the number of training samples and of
    the text's tokens if it takes `train_samples` and `vocabulary`. It draws weights from the framework's
    generator, which the caller seeds.

    Raises:
        ConfigError: where the builder wants to download something, in a run that has no network.
    """
    options = {key: value for key, value in config.model.items() if not key_of(f"model.{key}").fixed}
    builder = resolve(f"model.{config.framework}", config.model[config.framework])
    try:
        counted = accepted(
            inspect.signature(builder), {"train_samples": train_samples, "vocabulary": vocabulary}
        )
        return builder(classes=classes, shape=shape, **counted, **options)
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


def key_and_name(config: Config) -> str:
    """Return the key and value by which a user has named the model, for messages."""
    path = config.model.get("path")
    return f"model={config.model['name']}" if path is None else f"model.path={path}"


def call(path: str, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call what a user has named as `model.path`, with those of `arguments` that it takes, and `options`.

    The parameters of `UNLIKE_DEFAULTS` have these values where `options` don't give them.

    Raises:
        ConfigError: for a path that names nothing, or nothing that can be called; for an option that it
            doesn't take, or one that it lacks.
    """
    factory = resolve("model.path", path)
    if not callable(factory):
        raise ConfigError(f"model.path={path}: is {_a(factory)}, not a callable")
    try:
        signature = _signature(factory)
    except ValueError:
        # A function that isn't written in Python has no signature.
        return factory(**options)
    given = {**accepted(signature, {**arguments, **UNLIKE_DEFAULTS}), **options}
    _check_options(path, signature, given)
    return factory(**given)


def _signature(factory: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a callable; that of a class is its constructor's.

    Some releases of Python take that of `__new__` instead, which Keras's models have for any arguments.
    """
    if not inspect.isclass(factory) or not inspect.isfunction(factory.__init__):
        return inspect.signature(factory)
    _, *parameters = inspect.signature(factory.__init__).parameters.values()
    return inspect.Signature(parameters)


def check_kind(path: str, model: object, kind: type) -> None:
    """Raise `ConfigError` unless what `model.path` has returned is of a type."""
    if not isinstance(model, kind):
        name = f"{kind.__module__.split('.')[0]}.{'nn.' * (kind.__name__ == 'Module')}{kind.__name__}"
        raise ConfigError(f"model.path={path}: returned {_a(model)}, not a {name}")


def _check_options(path: str, signature: inspect.Signature, given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where a callable doesn't take what it is given, or needs more."""
    named = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    open_ended = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    unknown = [] if open_ended else [name for name in given if name not in named]
    if unknown:
        takes = f"it takes {', '.join(named)}; did you mean {nearest(unknown[0], named)}?" if named else ""
        raise ConfigError(f"model.path={path}: takes no option {unknown[0]!r}; {takes or 'it takes none'}")
    needed = [name for name, each in named.items() if each.default is each.empty and name not in given]
    if needed:
        raise ConfigError(
            f"model.path={path}: needs the option {needed[0]!r}; give +model.options.{needed[0]}=value"
        )


def _a(value: object) -> str:
    """Return the name of a value's type with its article."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"

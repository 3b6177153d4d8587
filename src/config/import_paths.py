"""Find what an import path names: without importing anything, or for good, with a sentence where it fails.

The parent must not import what may import a framework, and a user's module may. So it looks for the module's
file and reads which names it defines; what can't be told that way is left to the process that imports it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import pkgutil
import traceback
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.config.mistakes import ConfigError, OwnCodeError, nearest

if TYPE_CHECKING:
    from src.config.run_config import Config

# The import paths of this project's own code begin so.
OWN = "src."
# Calls by which a module may define names that its text doesn't show.
HIDDEN = {"globals", "setattr", "exec", "vars", "locals"}


def is_own(path: str) -> bool:
    """Return whether an import path names code of this project, and not the user's."""
    return path.startswith(OWN)


def has_own_model(config: Config) -> bool:
    """Return whether a run trains a model that isn't this project's, but some package's or the user's."""
    builder = config.model[config.framework]
    return not is_own(builder) or config.model.get("path") is not None or "package" in config.model


def check(key: str, path: str) -> None:
    """Check an import path as far as that goes without importing anything.

    Args:
        key: the key that holds the path, for messages.
        path: `package.module.name`.

    Raises:
        ConfigError: for a path that names nothing.
        OwnCodeError: for a module that is no valid Python.
    """
    spec = check_package(key, path)
    module, *rest = path.split(".")
    folders = list(spec.submodule_search_locations or ())
    while rest and folders:
        try:
            inner = PathFinder.find_spec(f"{module}.{rest[0]}", folders)
        except KeyError:
            # A package without __init__.py, which looks for its parent among the imported ones.
            inner = ModuleSpec(rest[0], None, is_package=True)
            folders = [inside for folder in folders if os.path.isdir(inside := f"{folder}/{rest[0]}")]
        else:
            if inner is None:
                break
            folders = list(inner.submodule_search_locations or ())
        spec, module = inner, f"{module}.{rest.pop(0)}"
    names = _names_in(spec, key, path)
    # A module may hold what has its name, as torchvision.models.alexnet does.
    if not rest and names is not None and module.rpartition(".")[2] not in names:
        raise ConfigError(f"{key}={path}: is a module; name what it is to use from it")
    if rest and names is not None and rest[0] not in names:
        found = [*names, *(each.name for each in pkgutil.iter_modules(folders))]
        raise ConfigError(f"{key}={path}: {_lacks(module, rest[0], found)}")


def check_package(key: str, path: str) -> ModuleSpec:
    """Return the specification of an import path's first package; raise `ConfigError` where it has none."""
    top, *rest = path.split(".")
    if not all(part.isidentifier() for part in (top, *rest)) or not rest:
        raise ConfigError(f"{key}={path}: is no import path; give package.module.name")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ConfigError(f"{key}={path}: no package {top!r} can be imported; give package.module.name")
    return spec


def resolve(key: str, path: str) -> Any:
    """Import and return what an import path names; raise `ConfigError` for a path that names nothing.

    An error of the module itself is raised as it is.
    """
    module, *rest = path.split(".")
    try:
        found = pkgutil.resolve_name(f"{module}:")
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ConfigError(f"{key}={path}: no package {module!r} can be imported") from error
    if not rest:
        raise ConfigError(f"{key}={path}: is no import path; give package.module.name")
    for place, part in enumerate(rest, 1):
        inner = f"{module}.{part}"
        if hasattr(found, "__path__") and importlib.util.find_spec(inner) is not None:
            package, found, module = found, pkgutil.resolve_name(f"{inner}:"), inner
            if place == len(rest):
                # A function of the module's name takes its place in the package, or is inside.
                named = (getattr(package, part), getattr(found, part, None))
                found = next((each for each in named if callable(each)), found)
            continue
        if not hasattr(found, part):
            public = [name for name in dir(found) if not name.startswith("_")]
            public += [each.name for each in pkgutil.iter_modules(getattr(found, "__path__", []))]
            raise ConfigError(f"{key}={path}: {_lacks(module, part, public)}")
        found, module = getattr(found, part), inner
    return found


def describe_error(error: BaseException) -> str:
    """Return an error of the user's own code in one line, with the file and line where it was raised."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{name}: {error.msg}, at {error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_ours(frame.filename)]
    where = f", at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return f"{name}: {text}{where}" if text else f"{name}{where}"


def _is_ours(file: str) -> bool:
    """Return whether a traceback's file is the project's, or one of Python's importing machinery."""
    return file.startswith("<frozen") or Path(__file__).parents[1] in Path(file).parents


def _lacks(module: str, name: str, names: Sequence[str]) -> str:
    """Return that `module` has no `name`, with the nearest of the names that it has."""
    if module == OWN.rstrip("."):
        return (
            f"{module!r} is this project's own package, in {Path(__file__).parents[1]}, and has "
            f"no {name!r}; a package of yours needs another name"
        )
    hint = f"; did you mean {nearest(name, names)}?" if names else ""
    return f"{module} has no {name!r}{hint}"


def _names_in(spec: ModuleSpec, key: str, path: str) -> set[str] | None:
    """Return the names that a module's source defines; `None` where only importing it would tell."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        # A folder without __init__.py defines nothing.
        return set() if spec.origin is None and spec.submodule_search_locations is not None else None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes(), spec.origin)
    except (SyntaxError, ValueError) as error:
        raise OwnCodeError(f"{key}={path}: {describe_error(error)}") from error
    except OSError:
        return None
    names = set(_bound(tree.body))
    hidden = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return None if {"*", "__getattr__"} & names or HIDDEN & hidden else names


def _bound(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind in the scope that they stand in."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in statement.names)
            continue
        for child in ast.walk(statement):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                yield child.id
            elif isinstance(child, ast.stmt) and child is not statement:
                yield from _bound([child])

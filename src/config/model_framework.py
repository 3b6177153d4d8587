"""Tell which framework a model of the user's own is of, without importing anything.

One that a strategy of the other framework imports beside its own ends in a crash, and not in an error.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from src.config.mistakes import ConfigError
from src.config.run_config import Config

# The packages that are of a framework, or import it.
LIBRARIES = {
    "torch": {"torch", "torchvision", "timm", "transformers", "pytorch_lightning", "lightning"},
    "tensorflow": {"tensorflow", "keras", "keras_cv", "keras_hub", "tf_keras", "tensorflow_hub"},
}


def check_framework_of(config: Config, strategies: Sequence[str]) -> None:
    """Raise `ConfigError` where `model.path` names a model of the other framework than the strategy's.

    `strategies` are the names of those of the other one.
    """
    path = config.model.get("path")
    if path is None or (framework := framework_of(path)) in (None, config.framework):
        return
    raise ConfigError(
        f"model.path={path}: is a model of {framework}, and strategy={config.strategy['name']} trains those "
        f"of {config.framework}; strategies of {framework} are {', '.join(strategies)}"
    )


def framework_of(path: str) -> str | None:
    """Return the framework that what an import path names is of, `None` where that can't be told."""
    top = path.split(".")[0]
    used = {top, *_imports(path)}
    found = [framework for framework, packages in LIBRARIES.items() if used & packages]
    return found[0] if len(found) == 1 else None


def _imports(path: str) -> set[str]:
    """Return the packages that the module's file of an import path imports anywhere, by its text."""
    spec = module_of(path)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return set()
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def module_of(path: str) -> ModuleSpec | None:
    """Return the specification of the innermost module of an import path that has a file."""
    top, *rest = path.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for part in rest:
            folders = list(spec.submodule_search_locations or ()) if spec else []
            try:
                inner = PathFinder.find_spec(f"{top}.{part}", folders) if folders else None
            except KeyError:
                # A package without __init__.py, which looks for its parent among the imported ones.
                inner = ModuleSpec(part, None, is_package=True)
                inner.submodule_search_locations = [
                    inside for folder in folders if os.path.isdir(inside := f"{folder}/{part}")
                ]
            if inner is None:
                break
            spec, top = inner, f"{top}.{part}"
    except (ImportError, KeyError, ValueError):
        return None
    return spec

"""Say by which software a run is computed: the code that its processes can load, and its libraries.

Two runs compare where all that both depend on is the same (`src.report.comparison`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from importlib import metadata
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from src.config import Config

ROOT = Path(__file__).parents[2]
# Where a run begins: its parent and its ranks.
ENTRIES = ("src.train", "src.worker")


def software_of(config: Config) -> dict[str, dict[str, str]]:
    """Return the `files` and `libraries` on which a run depends.

    Files are those that the imports of its entry points, strategy, launcher, model and reader lead to: the
    sha256 of each by its path, of a user's own by its module. Libraries are those imported there: their
    versions by name.
    """
    finder = imports_of(config)
    paths = {name: getattr(module, "__file__", None) for name, module in finder.modules.items()}
    files = {
        _named(name, Path(path)): hashlib.sha256(Path(path).read_bytes()).hexdigest()
        for name, path in paths.items()
        if path
    }
    libraries = {"python": platform.python_version()}
    for name in sorted({missing.partition(".")[0] for missing in finder.badmodules}):
        # Modules of the standard library, and the few whose distribution has another name, are left out.
        with contextlib.suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    return {"files": dict(sorted(files.items())), "libraries": libraries}


def imports_of(config: Config) -> ModuleFinder:
    """Find the modules that a run can import, without importing them; those of libraries are not followed."""
    finder = ModuleFinder(path=[str(ROOT), os.getcwd(), *_extra_paths()])
    for name in (*ENTRIES, *map(_module, _import_paths(config))):
        # A library's model, as torchvision.models.resnet34, is no code of ours.
        with contextlib.suppress(ImportError):
            finder.import_hook(name)
    return finder


def _import_paths(config: Config) -> list[str]:
    """Return the import paths that a configuration names."""
    strategy, model = config.strategy, config.model
    named: list[Any] = [strategy.get(key) for key in ("entry", "serve", "launcher")]
    named += [model.get(config.framework), model.get("path"), config.dataset["reader"]]
    return [path for path in named if path]


def _module(path: str) -> str:
    """Return the module of an import path, `package.module` of `package.module.name`."""
    return path.rpartition(".")[0]


def _extra_paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _named(module: str, file: Path) -> str:
    """Return a file's path within the project, or else the name of its `module`."""
    file = file.resolve()
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else module

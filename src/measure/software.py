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

    Files are those that the imports of its entry points, strategy, launcher, model, task and reader lead to:
    the sha256 of each by its path, of a user's own by its module. Libraries are those imported there: their
    versions by name.
    """
    paths, imported = _imports_of(config)
    files = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}
    libraries = {"python": platform.python_version()}
    for name in sorted(imported):
        # Modules of the standard library, and the few whose distribution has another name, are left out.
        with contextlib.suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    return {"files": dict(sorted(files.items())), "libraries": libraries}


def own_files(config: Config) -> dict[str, Path]:
    """Return the files of the user's own code that a run can import, by their path in a folder of imports."""
    own = {}
    for name, path in _imports_of(config)[0].items():
        if "/" not in name:
            # It lies elsewhere. A package is its folder's __init__.py.
            own[name.replace(".", "/") + ("/__init__.py" if path.stem == "__init__" else ".py")] = path
        elif not name.startswith("src/"):
            own[name] = path
    return own


def _imports_of(config: Config) -> tuple[dict[str, Path], set[str]]:
    """Return the files that a run can import by name, and the top-level modules of its libraries.

    Nothing is imported for that, and libraries are not followed.
    """
    folders = [str(ROOT), os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    finder = ModuleFinder(path=folders)
    for name in ENTRIES:
        finder.import_hook(name)
    paths: dict[str, Path] = {}
    for path in _import_paths(config):
        module = path.rpartition(".")[0]
        places = (Path(folder, *module.split(".")).with_suffix(".py") for folder in folders)
        # A library's model, as torchvision.models.resnet34, has no file here, and is no code of ours.
        if found := next((place for place in places if place.is_file()), None):
            paths[_named(module, found)] = found
            # As a script, for the finder fails at packages without an __init__.py. What a user's file has
            # wrong, its rank will say.
            with contextlib.suppress(AttributeError, SyntaxError):
                finder.run_script(str(found))
    for name, loaded in finder.modules.items():
        if name != "__main__" and (file := getattr(loaded, "__file__", None)):
            paths[_named(name, Path(file))] = Path(file)
    return paths, {missing.partition(".")[0] for missing in finder.badmodules}


def _import_paths(config: Config) -> list[str]:
    """Return the import paths that a configuration names."""
    strategy, model = config.strategy, config.model
    named: list[Any] = [strategy.get(key) for key in ("entry", "serve", "launcher")]
    named += [model.get(config.framework), model.get("path"), config.task[config.framework]]
    named += [config.dataset["reader"], config.dataset.get("in_memory")]
    return [path for path in named if path]


def _named(module: str, file: Path) -> str:
    """Return a file's path within the project, or else the name of its `module`."""
    file = file.resolve()
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else module

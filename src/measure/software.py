"""Say by which software a run is computed: the code that can touch its figures, and its libraries.

Two runs compare where all that both depend on is the same (`src.report.comparison`).
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from src.config import Config, datasets, python_source
from src.measure import parent_code

ROOT = Path(__file__).resolve().parents[2]
RANK = "src.worker"
# Distributions of modules by other names, with what modules load besides; none where no figure is touched.
DISTRIBUTIONS = {
    "PIL": ("pillow",),
    "mpi4py": ("mpi4py", "mpich", "openmpi"),
    "pynvml": ("nvidia-ml-py",),
    # It draws bars and tables.
    "rich": (),
    "yaml": ("pyyaml",),
}


def software_of(config: Config) -> dict[str, dict[str, str]]:
    """Return the `files` and `libraries` on which a run's figures depend.

    Files are all that a rank can import, strategy, model, task and reader included, and of the parent what
    `parent_code` names: the hash of what each executes, by its path, of a user's own by its module. Libraries
    are those imported there: their versions by name.
    """
    ranks, imported = _reach([RANK, *_rank_paths(config)])
    parents, imported_there = _reach(
        [*parent_code.counted(config), *_parent_paths(config)],
        lambda module: parent_code.leaves_out(module, config),
    )
    files = {_named(module, path): path for module, path in {**parents, **ranks}.items()}
    libraries = {"python": platform.python_version()}
    for module in imported | imported_there:
        for name in DISTRIBUTIONS.get(module, (module,)):
            # Modules of the standard library have none.
            with contextlib.suppress(metadata.PackageNotFoundError):
                libraries[name] = metadata.version(name)
    return {
        "files": {name: python_source.read(files[name]).digest for name in sorted(files)},
        "libraries": dict(sorted(libraries.items())),
    }


def own_files(config: Config) -> dict[str, Path]:
    """Return the files of the user's own code that a run can import, by their path in a folder of imports."""
    files, _ = _reach([RANK, *_rank_paths(config), *_parent_paths(config)])
    return {
        module.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py"): path
        for module, path in files.items()
        if not path.is_relative_to(ROOT / "src")
    }


def _reach(
    roots: Sequence[str], leave_out: Callable[[str], bool] = lambda module: False
) -> tuple[dict[str, Path], set[str]]:
    """Return the files by module to which `roots` lead, and the names of the libraries besides."""
    return python_source.reach(roots, python_source.search_path(), leave_out)


def _rank_paths(config: Config) -> list[str]:
    """Return the import paths that a configuration names of what ranks import."""
    strategy, model, dataset = config.strategy, config.model, config.dataset
    paths: list[Any] = [strategy["entry"], strategy.get("serve")]
    paths += [model.get(config.framework), model.get("path"), config.task[config.framework]]
    paths += [dataset["reader"], dataset.get("in_memory"), dataset.get("module")]
    if dataset["source"] == datasets.GENERATED:
        paths.append(dataset.get("generator"))
    if config.hardware.probe:
        paths.append((strategy.get("exchange") or {}).get("profile"))
    if config.profiler:
        paths.append(f"src.runtime.{config.framework}.step_profiler")
    return [path for path in paths if path]


def _parent_paths(config: Config) -> list[str]:
    """Return the import paths that a configuration names of what the parent imports."""
    return [path for path in (config.strategy["launcher"], config.hardware.engine) if path]


def _named(module: str, path: Path) -> str:
    """Return a file's path within the project, or else the name of its `module`."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else module

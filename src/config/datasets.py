"""Fill in what a dataset's file may leave away, and check what users choose of a dataset.

This module imports neither Hydra nor a framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.config.mistakes import ConfigError

ORIGINAL, GENERATED = SOURCES = ("original", "generated")
# A dataset's file means this where it doesn't say otherwise.
DEFAULTS: dict[str, Any] = {
    "task": "classification",
    "in_memory": None,
    "generator": None,
    "unpack": None,
    "page": None,
    "licence": None,
    "registration": None,
    "data_dir": None,
    "tree": False,
    "content": None,
    "code": None,
    "fraction": 0.02,
    "generator_seed": 0,
    "size": None,
    "skip_damaged": None,
    "augment": "none",
    "shuffle_window": None,
    "options": {},
    "limit": None,
    "test_limit": None,
}
# What a compressed file's name ends with; that of a dictionary is gzip's format, too.
GZIPPED = (".gz", ".dz")
# Options of a stand-in alone, by which it becomes another one.
STAND_IN = ("fraction", "generator_seed")


def filled(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dataset with the keys that its file leaves away."""
    return {**DEFAULTS, **dataset}


def check(dataset: Mapping[str, Any], default: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where a user has chosen a source that there isn't, or a folder that lacks files.

    The types of the user's choices in `dataset` are right; `default` is the dataset as its file has it.
    """
    name, source = dataset["name"], dataset["source"]
    if source != default["source"] and not dataset.get("generator"):
        lacking = "generated stand-in" if source == GENERATED else "original"
        raise ConfigError(f"dataset.source={source}: {name} has no {lacking}; leave it away")
    if source == ORIGINAL and dataset.get("data_dir") is not None:
        _check_data_dir(dataset)


def _check_data_dir(dataset: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless the folder that the user names has all files of a dataset."""
    word, folder = f"dataset.data_dir={dataset['data_dir']}", Path(dataset["data_dir"]).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{word}: {'is no folder' if folder.exists() else 'no such folder'}")
    if missing := [file for file in dataset["files"] if find_file(folder, file) is None]:
        raise ConfigError(f"{word}: lacks {', '.join(missing)}{where(dataset, '; ')}")


def find_file(folder: Path, file: str) -> Path | None:
    """Return the path of one of a dataset's files in a user's folder, maybe compressed; else `None`."""
    paths = (folder / file, *(folder / f"{file}{suffix}" for suffix in GZIPPED))
    return next((path for path in paths if path.is_file()), None)


def where(dataset: Mapping[str, Any], before: str = "") -> str:
    """Return where the original files of a dataset can be had, after `before`; nothing where none says so."""
    page = dataset.get("page") or ""
    said = (dataset.get("registration") or "").rstrip(".") or (page and f"see {page}")
    if page not in said:
        said += f" ({page})"
    return f"{before}{said}" if said else ""

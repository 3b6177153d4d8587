"""Look datasets up in conf/dataset/, and say where their files and arrays are kept.

This module is quick to import, because the parent uses it before anything heavy is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.config import ConfigError, choices
from src.config.schema import nearest
from src.data.errors import DataMistake
from src.machine.folders import obstacle

CHOICES = Path("conf/dataset")
PREPARED = Path("prepared")
# To be increased whenever prepared folders change their form, so that older ones are made anew.
FORM = 3


class UnknownDataset(DataMistake):
    """A name that no dataset of conf/dataset/ has."""


def choice(name: str) -> dict[str, Any]:
    """Return the dataset of conf/dataset/NAME.yaml, under the current directory.

    Raises:
        UnknownDataset: for a name without a file; its text has the nearest name.
        DataMistake: for a file that gives another name, lacks a key, or isn't YAML.
    """
    names = sorted(path.stem for path in CHOICES.glob("*.yaml"))
    if name not in names:
        hint = f"; did you mean {nearest(str(name), names)!r}?" if names else ""
        raise UnknownDataset(f"unknown dataset {name!r}: {CHOICES} has {', '.join(names) or 'none'}{hint}")
    path = CHOICES / f"{name}.yaml"
    try:
        dataset = choices.read(path)
        if dataset.get("name") != name:
            raise DataMistake(f"{path} must be a mapping with `name: {name}`")
        choices.check_dataset(path, dataset)
    except ConfigError as error:
        raise DataMistake(str(error)) from error
    return dataset


def cache_folder() -> Path:
    """Return the folder outside the repository where raw files, packages and arrays are kept.

    It is SCALEGUIDE_CACHE, or `scaleguide` under XDG_CACHE_HOME, or ~/.cache/scaleguide.
    """
    if own := os.environ.get("SCALEGUIDE_CACHE"):
        return Path(os.path.abspath(os.path.expanduser(own)))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "scaleguide"


def check_cache() -> None:
    """Raise `DataMistake` unless the folder outside the repository can be made and written."""
    folder = cache_folder()
    if (own := os.environ.get("SCALEGUIDE_CACHE", "")).startswith("~") and os.path.expanduser(own) == own:
        raise DataMistake(f"SCALEGUIDE_CACHE={own}: there is no such user")
    if reason := obstacle(folder):
        named = "SCALEGUIDE_CACHE" if os.environ.get("SCALEGUIDE_CACHE") else "XDG_CACHE_HOME"
        value = os.environ.get(named) or folder
        raise DataMistake(f"{named}={value}: {reason}")


def fingerprint(dataset: Mapping[str, Any]) -> str:
    """Return 12 hexadecimal digits that stand for the prepared arrays of a dataset.

    They change with whatever changes the arrays, and so not with `sources` or limits.
    """
    keys = ["name", "reader", "source", "files", "options", "size"]
    if dataset.get("source") == "generated":
        keys += ["generator", "fraction", "generator_seed"]
    parts = {key: dataset.get(key) for key in keys}
    text = json.dumps({"form": FORM, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_prepared(folder: Path, wanted: str) -> bool:
    """Return whether a folder holds all arrays of the fingerprint `wanted`."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        return meta["fingerprint"] == wanted and all((folder / file).is_file() for file in meta["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False

"""Look datasets up in conf/dataset/, and say where their files and arrays are kept.

This module is quick to import, because the parent uses it before anything heavy is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.config import CONF, ConfigError, choices, datasets
from src.config.dataset_content import cache_folder as cache_folder
from src.config.dataset_content import code_of
from src.config.keys import KEYS
from src.config.mistakes import nearest
from src.data.errors import DataMistake
from src.machine.folders import obstacle

CHOICES = Path("conf/dataset")
PREPARED = Path("prepared")
# A study's `datasets` may say this of a dataset besides its name.
STUDY_OPTIONS = ("source", "data_dir", "size", "skip_damaged", *datasets.STAND_IN)
# The file in the folder of a dataset that has none.
NO_FILES = "none"
# To be increased whenever prepared folders change their form, so that older ones are made anew.
FORM = 3
# To be increased whenever generators write other files.
GENERATION = 2


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
    return datasets.filled(dataset)


def configure(entry: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the dataset of an entry of a study's `datasets`: a name, or {name: cifar10, source: generated}.

    Raises:
        DataMistake: for an entry that names no dataset, or an option that it doesn't have.
    """
    options = {"name": entry} if isinstance(entry, str) else dict(entry)
    default = choice(options.pop("name", ""))
    dataset = {**default, **options}
    try:
        for key in options:
            if key not in STUDY_OPTIONS:
                allowed = ", ".join(STUDY_OPTIONS)
                raise ConfigError(
                    f"dataset.{key}: a study's dataset has {allowed}; did you mean "
                    f"{nearest(str(key), STUDY_OPTIONS)}?"
                )
            rule = KEYS[f"dataset.{key}"].rule
            assert rule is not None
            rule.check(f"dataset.{key}", dataset[key])
        datasets.check(dataset, default)
    except ConfigError as error:
        raise DataMistake(f"{default['name']}: {error}") from error
    return {**dataset, "code": code_of(dataset)}


def folder_name(dataset: Mapping[str, Any]) -> str:
    """Return the name of a dataset's folders in downloads/, data/ and prepared/.

    It says of what source the files are, where that isn't the original, and which options of preparation
    aren't those of the dataset's file: `flowers-generated-size=64`.
    """
    default = datasets.filled(_file_of(dataset["name"]) or dataset)
    stand_in = datasets.STAND_IN if dataset.get("source") == datasets.GENERATED else ()
    chosen = {key: dataset.get(key, default[key]) for key in ("size", *stand_in)}
    parts = [f"{key}={value}" for key, value in chosen.items() if value != default[key]]
    return "-".join([source_name(dataset), *parts])


def source_name(dataset: Mapping[str, Any]) -> str:
    """Return a dataset's name with its source, where that isn't the original."""
    return f"{dataset['name']}-generated" if dataset.get("source") == datasets.GENERATED else dataset["name"]


def _file_of(name: str) -> dict[str, Any] | None:
    """Return what the file of a dataset says: that under the current directory, else the project's own."""
    for folder in (CHOICES, CONF / "dataset"):
        with contextlib.suppress(ConfigError):
            return choices.read(folder / f"{name}.yaml")
    return None


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

    They change with whatever changes the arrays, and so not with `sources` or limits. A user's own files are
    told apart by `content`, and readers and generators by `code`, where a command has looked at them
    (`src.config.dataset_content`).
    """
    parts = {key: dataset.get(key) for key in ("name", "reader", "source", "files", "options", "size")}
    if dataset.get("source") == "generated":
        parts |= {key: dataset.get(key) for key in ("generator", "fraction", "generator_seed")}
        parts["generation"] = GENERATION
    parts |= {key: dataset[key] for key in ("content", "code") if dataset.get(key) is not None}
    text = json.dumps({"form": FORM, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_prepared(folder: Path, wanted: str) -> bool:
    """Return whether a folder holds all arrays of the fingerprint `wanted`."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        return meta["fingerprint"] == wanted and all((folder / file).is_file() for file in meta["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False

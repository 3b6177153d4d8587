"""Give each of a study's datasets a folder, and tell which one a cell reads.

A study lists a dataset by its name, or as {name: cifar10, source: generated}, whose folder is
cifar10-generated. The stage `preprocess` of dvc.yaml makes each folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from src.config.mistakes import ConfigError
from src.config.run_config import CONF
from src.data.catalog import configure, folder_name
from src.data.errors import DataMistake

# Options of a study's dataset that tell its folders apart, and keys that don't change them.
TELLING, NO_PART = ("source", "size", "fraction", "generator_seed"), ("name", "data_dir")
# A folder, the dataset in it, and the options by which it was prepared.
Listed = tuple[str, dict[str, Any], dict[str, Any]]


def folders(study: Mapping[str, Any]) -> DictConfig:
    """Return the prepared folders of a study by name, with their datasets and the words of `src.preprocess`.

    Raises:
        ConfigError: for a list of datasets that is none, or has a folder twice.
    """
    found = {}
    for folder, dataset, options in listed(study):
        words = [dataset["name"], *(f"'{key}={typed(value)}'" for key, value in options.items())]
        found[folder] = {"name": dataset["name"], "words": " ".join(words)}
    return OmegaConf.create(found)


def listed(study: Mapping[str, Any]) -> list[Listed]:
    """Return (folder, dataset, options of preparation) of each of a study's datasets."""
    entries = study.get("datasets")
    if not isinstance(entries, list) or not all(isinstance(entry, str | dict) for entry in entries):
        raise ConfigError(f"study.datasets={entries}: must be a list of names, as [mnist]")
    known: dict[str, Listed] = {}
    for entry in entries:
        try:
            # Where the stages will run, too.
            with contextlib.chdir(CONF.parent):
                dataset = configure(entry)
                folder = folder_name(dataset)
        except DataMistake as error:
            raise ConfigError(f"study.datasets: {error}") from error
        options = {} if isinstance(entry, str) else {k: v for k, v in entry.items() if k not in NO_PART}
        if folder in known:
            raise ConfigError(f"study.datasets={entries}: lists {folder} twice")
        known[folder] = folder, dataset, options
    return list(known.values())


def choose(row: Sequence[str], datasets: Sequence[Listed]) -> tuple[str, list[str]]:
    """Return the folder that a row of the grid reads, and the overrides by which a run finds it.

    Raises:
        ConfigError: where none of the `datasets` of its name fits the row, or several do.
    """
    words = dict(word.split("=", 1) for word in row)
    name = words["dataset"]
    own = {key.removeprefix("dataset."): value for key, value in words.items() if key.startswith("dataset.")}
    named = [each for each in datasets if each[1]["name"] == name]
    if not named:
        raise ConfigError(
            f"study.datasets={[each[0] for each in datasets]}: lacks {name}, which the grid uses"
        )
    fitting = [
        each
        for each in named
        if all(own.get(key, typed(each[1][key])) == typed(each[1][key]) for key in TELLING)
    ]
    shown = ", ".join(each[0] for each in named)
    if not fitting:
        asked = " ".join(f"dataset.{key}={own[key]}" for key in TELLING if key in own)
        raise ConfigError(
            f"study.datasets: has {shown}, and the grid asks for {name} with {asked}; list it, too"
        )
    if len(fitting) > 1:
        keys = [key for key in TELLING if len({typed(each[1][key]) for each in fitting}) > 1]
        raise ConfigError(
            f"study.datasets: has {shown}; the grid must say which one it uses, as dataset.{keys[0]}="
            f"{typed(fitting[0][1][keys[0]])}"
        )
    ((folder, _, options),) = fitting
    return folder, [f"dataset.{key}={typed(value)}" for key, value in options.items() if key not in own]


def typed(value: Any) -> str:
    """Return a value as it is typed in a command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)

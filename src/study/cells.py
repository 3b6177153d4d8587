"""Expand a study's grid into its cells, each with the overrides of its run, and give its datasets folders.

A study lists a dataset by its name, or as {name: cifar10, source: generated}, whose folder is
cifar10-generated. The stage `preprocess` of dvc.yaml makes each folder, and the stage `train` runs each cell.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from omegaconf import DictConfig, OmegaConf

from src.config import compose
from src.config.mistakes import ConfigError
from src.config.run_config import CONF
from src.config.schema import typed
from src.data.catalog import configure, folder_name
from src.data.errors import DataMistake

NEEDED = ("strategy", "model", "dataset")
# Options of a study's dataset that tell its folders apart, and keys that don't change them.
TELLING, NO_PART = ("source", "size", "fraction", "generator_seed"), ("name", "data_dir")
# A folder, the dataset in it, and the options by which it was prepared.
Listed = tuple[str, dict[str, Any], dict[str, Any]]


def cells(grid: Any, repeat: Any = 1, study: Mapping[str, Any] | None = None) -> DictConfig:
    """Return the cells of a grid by name, each with its overrides for `src.train` and what it reads.

    Each block of the grid maps keys to values or lists of values; its configurations are the Cartesian
    product, and each is measured `repeat` times. A repetition is a cell of its own, so that one more doesn't
    run the others again; the first has the configuration's name, later ones end in `-r2`, `-r3`, ... DVC runs
    cells in this order: all first repetitions as the grid has them, then each further round shuffled, so that
    neither a drift of the machine nor a cell's predecessor always favours the same. Where workers share
    devices there is no speed to measure, and a configuration has one cell.

    For a short look at a long study, SCALEGUIDE_MAX_CELLS limits the number of configurations, and
    SCALEGUIDE_MAX_MINUTES the minutes of each, which then appear in its name.

    Raises `ConfigError` for a cell with a wrong name, type or range, or one that occurs twice; for a wrong
    `repeat`, a grid that is none, or a `study` whose name or datasets don't fit.
    """
    rows = _rows(OmegaConf.to_container(grid) if OmegaConf.is_config(grid) else grid)
    if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1:
        raise ConfigError(f"study.repeat={repeat}: must be a whole number, at least 1")
    rows = rows[: _most_cells(len(rows))]
    _check_name(study or {})
    prepared: list[str | None] = [None] * len(rows)
    if "datasets" in (study or {}):
        datasets = listed(study or {})
        chosen = [choose(row, datasets) for row in rows]
        rows = [[*row, *words] for row, (_, words) in zip(rows, chosen, strict=True)]
        prepared = [folder for folder, _ in chosen]
    composed = zip(compose.name_rows(rows), prepared, strict=True)
    described, shared = {}, set()
    for (name, raw, row), folder in composed:
        described[name] = _describe_cell(raw, row, folder)
        if raw["hardware"]["share_devices"]:
            shared.add(name)
    if len(described) < len(rows):
        raise ConfigError("the grid names a cell twice")
    cells_by_name = {}
    for repetition in range(1, repeat + 1):
        names = [name for name in described if repetition == 1 or name not in shared]
        if repetition > 1:
            random.Random(repetition).shuffle(names)
        for name in names:
            cell = name if repetition == 1 else f"{name}-r{repetition}"
            cells_by_name[cell] = {**described[name], "configuration": name, "repetition": repetition}
    return OmegaConf.create(cells_by_name)


def _rows(grid: Any) -> list[list[str]]:
    """Return the overrides of each configuration of a grid; raise `ConfigError` where it is no grid."""
    form = "a list of blocks, as - {strategy: [single, ddp], model: cnn, dataset: mnist}"
    if not isinstance(grid, list) or not grid:
        raise ConfigError(f"study.grid={grid}: must be {form}")
    rows = []
    for number, block in enumerate(grid, 1):
        if not isinstance(block, dict) or not block:
            raise ConfigError(f"study.grid: block {number} is {block!r}; it must be {form}")
        for key in NEEDED:
            if key not in block:
                has = ", ".join(map(str, block))
                raise ConfigError(f"study.grid: block {number} lacks `{key}`; it has {has}")
        for key, value in block.items():
            values = value if isinstance(value, list) else [value]
            if not isinstance(key, str):
                raise ConfigError(f"study.grid: block {number} has the key {key!r}, which is no text")
            if key in NEEDED and not all(isinstance(each, str) for each in values):
                names = ", ".join(NEEDED)
                raise ConfigError(f"study.grid: block {number}: {key}={value}: must be a name ({names})")
            if not values:
                raise ConfigError(f"study.grid: block {number}: {key}=[]: an empty list gives no cell")
            if key in ("out", "tracking.study", "overwrite"):
                raise ConfigError(f"study.grid: block {number}: {key}: is the study's to set; leave it away")
        rows += [
            [f"{key}={typed(value)}" for key, value in zip(block, values, strict=True)]
            for values in product(*(v if isinstance(v, list) else [v] for v in block.values()))
        ]
    return rows


def _most_cells(count: int) -> int:
    """Return SCALEGUIDE_MAX_CELLS, or `count` without it; raise `ConfigError` where it is no number."""
    limit = os.environ.get("SCALEGUIDE_MAX_CELLS") or str(count)
    if not limit.isdecimal() or not int(limit):
        raise ConfigError(f"SCALEGUIDE_MAX_CELLS={limit}: must be a whole number, at least 1")
    return int(limit)


def _check_name(study: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where a study's name is none for a folder."""
    name = study.get("name")
    if "name" in study and (not isinstance(name, str) or not re.fullmatch(r"\w[\w.+-]*", name)):
        raise ConfigError(f"study.name={name}: must be a word of letters, digits, '_', '-' and '.'")


def _describe_cell(raw: dict[str, Any], row: Sequence[str], folder: str | None) -> dict[str, Any]:
    """Return the entry of a cell with the composition `raw` and the overrides `row`, which reads `folder`."""
    choices = dict(word.split("=", 1) for word in row)
    return {
        **{group: choices[group] for group in ("strategy", "model", "dataset")},
        "data_source": raw["dataset"]["source"],
        "folder": folder or choices["dataset"],
        "hardware": choices.get("hardware", "local"),
        "task": raw["task"]["name"],
        "framework": raw["strategy"]["framework"],
        "overrides": " ".join(f"'{word}'" for word in row),
    }


def folders(study: Mapping[str, Any]) -> DictConfig:
    """Return the prepared folders of a study by name, with their datasets and the words of `src.preprocess`.

    Raises `ConfigError` for a list of datasets that is none, or has a folder twice.
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

    Raises `ConfigError` where none of the `datasets` of its name fits the row, or several do.
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

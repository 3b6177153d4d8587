"""Read a study, and work out the merged row of each of its runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.config import ConfigError, choices
from src.report import network, repeats, runs, tables
from src.report.runs import Row, StudyRun
from src.run.tables import read_mapping

# The file among a study's tables that has the study itself.
KEPT = "study.json"


def read(params: Path) -> dict[str, Any]:
    """Read the study in the file `params`; raise `ConfigError` unless it has a name and cells."""
    study = choices.read(params).get("study")
    if not isinstance(study, dict):
        raise ConfigError(f"{params}: holds no study; `dvc exp run -S study=quick` writes it")
    if not isinstance(study.get("name"), str) or not re.fullmatch(r"\w[\w.+-]*", study["name"]):
        raise ConfigError(f"{params}: study.name={study.get('name')}: must be a word, that names a folder")
    if not isinstance(study.get("cells"), dict) or not study["cells"]:
        raise ConfigError(f"{params}: study.cells must be a mapping with at least one cell")
    return study


def of_folder(folder: Path) -> dict[str, Any]:
    """Return the study whose results are in a folder, as its last aggregation kept it.

    Of a folder without tables, every run is a cell of a study of the folder's name.
    """
    kept = read_mapping(folder / "tables" / KEPT)
    if isinstance(kept.get("cells"), dict) and isinstance(kept.get("name"), str):
        return dict(kept)
    names = sorted(path.name for path in (folder / "runs").iterdir() if path.is_dir())
    return {"name": folder.name, "cells": {name: _declared(name, names) for name in names}}


def _declared(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Return which configuration a run repeats, by its name: repetitions end in `-r2`, `-r3`, ..."""
    found = re.fullmatch(r"(.+)-r(\d+)", name)
    if found is None or found[1] not in names:
        return {}
    return {"configuration": found[1], "repetition": int(found[2])}


def directory(study: Mapping[str, Any]) -> Path:
    """Return the folder in which a study's results are."""
    return Path("results") / study["name"]


def load(study: Mapping[str, Any], folder: Path) -> list[StudyRun]:
    """Read a study's runs from `folder/runs`; one that isn't there says so."""
    return runs.load(study["cells"], folder / "runs")


def merged_rows(study: Mapping[str, Any], known: Sequence[StudyRun]) -> list[Row]:
    """Return the merged row of each run, with the interval of its configuration's speed-up."""
    rows_by_table = {
        "scaling": tables.scaling(known, study.get("baseline")),
        "accuracy": tables.accuracy(known),
        "utilization": tables.utilization(known),
        "network": network.network(known),
        "runs": tables.records(known),
    }
    rows = tables.merged(known, rows_by_table, runs.labels(known))
    repeats.attach_intervals(rows, repeats.summarise(rows))
    return rows

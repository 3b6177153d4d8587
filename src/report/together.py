"""Put studies of several machines together, side by side: ratios stand within each one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from src.config.mistakes import ConfigError, nearest
from src.report import comparison, repeats, study
from src.report.runs import Row, StudyRun, load
from src.report.views import View, show

# A run's key for the folder that it is from.
MACHINE = "machine"
# Keys of a study for its verdict.
WISHES = ("aim", "limit", "prices")


def read(folders: Sequence[Path]) -> tuple[dict[str, Any], list[StudyRun], list[Row]]:
    """Return a study of all runs in the folders of several, the runs, and the merged row of each.

    A cell is called by its folder and its name there. Speed-up and parity stand on runs of the same folder.
    What all studies have asked for alike (`aim`, `limit`, `prices`) is asked for of the whole.

    Raises:
        ConfigError: for a folder without runs, or two of one name.
    """
    names = [folder.resolve().name for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        if not (folder / "runs").is_dir():
            raise ConfigError(f"{folder}: has no runs/; must be the folder of a study, as results/quick")
        if names.count(name) > 1:
            raise ConfigError(f"{folder}: another folder is called {name}, too; rename one, as its machine")
    runs: list[StudyRun] = []
    rows: list[Row] = []
    wishes: list[dict[str, Any]] = []
    for folder, name in zip(folders, names, strict=True):
        known = study.of_folder(folder)
        own = [_named(run, name) for run in load(known["cells"], folder / "runs")]
        runs += own
        rows += study.merged_rows(known, own)
        wishes.append({key: known.get(key) for key in WISHES})
    again = f"python -m src.aggregate {shlex.join(map(str, folders))}"
    wanted = wishes[0] if wishes.count(wishes[0]) == len(wishes) else {}
    return {**wanted, "name": " + ".join(names), "cells": {}, "again": again}, runs, rows


def _named(run: StudyRun, name: str) -> StudyRun:
    configuration = f"{name}/{run.configuration}"
    declared = {**run.declared, "configuration": configuration, MACHINE: name}
    return replace(run, cell=f"{name}/{run.cell}", declared=declared)


def machines_view(rows: Sequence[Row], baseline: str | None = None) -> View:
    """Return a table of the samples/s of each configuration on each machine, from merged rows.

    With a `baseline`, the name of a machine, each figure has its ratio to that of this machine, where both
    ran the same software; the hardware differs, and the table says how.

    Raises:
        ConfigError: for a `baseline` that is none of the machines.
    """
    machines = list(dict.fromkeys(str(row[MACHINE]) for row in rows))
    if baseline is not None and baseline not in machines:
        raise ConfigError(
            f"--baseline {baseline}: must be one of {', '.join(machines)}; did you mean "
            f"{nearest(baseline, machines)}?"
        )
    alike: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in repeats.summarise(rows):
        if row.get("samples_per_second") is not None:
            alike.setdefault(_work(row), {})[str(row[MACHINE])] = row
    shown = {key: known for key, known in alike.items() if len(known) > 1}
    notes = []
    lines = []
    for known in shown.values():
        first = next(iter(known.values()))
        base = known.get(baseline) if baseline is not None else None
        cells = []
        for machine in machines:
            text, note = _figure(known.get(machine), base)
            cells.append(text)
            notes += [f"{machine}: {note}."] if note else []
        named = [
            first["label"],
            f"{first['model']} on {first['dataset']}",
            f"{first['workers']}",
            f"{first['batch']}",
        ]
        lines.append(("ok", [*named, *cells]))
    if baseline is None:
        notes.append("Ratios across machines need one that is named: --baseline MACHINE.")
    headings = ["strategy", "model", "workers", "batch", *machines]
    title = "machines, samples/s" + (f" (over {baseline})" if baseline else "")
    numeric = [False, False, True, True, *(True for _ in machines)]
    values = [[None] * len(headings) for _ in lines]
    return View(title, headings, lines, list(dict.fromkeys(notes)), numeric, values)


def _work(row: Row) -> tuple[Any, ...]:
    """Return what two machines' configurations have in common to stand in a line."""
    run = row["run"]
    work = {key: str(value) for key, value in comparison.work(run).items()}
    keys = ("framework", "strategy", "label", "workers", "scaling", "microbatches")
    return (*(str(row.get(key)) for key in keys), *sorted(work.items()))


def _figure(row: Row | None, base: Row | None) -> tuple[str, str]:
    """Return a configuration's rate on a machine with its ratio to another one's, and a note on that."""
    if row is None:
        return "-", ""
    rate = show(row["samples_per_second"], "rate")
    if base is None or base is row:
        return rate, ""
    one, other = row["run"], base["run"]
    note = "; ".join(comparison.differences(one, other))
    if not comparison.same_software(one, other):
        return rate, f"no ratio ({note})"
    return f"{rate} ({show(row['samples_per_second'] / base['samples_per_second'], 'ratio')})", note

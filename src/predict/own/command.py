"""Predict runs from a profile: `python -m src.predict --profile profile strategy=ddp model=resnet18`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from src.config import ConfigError
from src.measure.timeline import chrome_trace
from src.predict import ledger
from src.predict.ledger import Entry
from src.predict.own import calibration, cost_profile, runs, steps
from src.predict.own import cells as own_cells
from src.predict.own.calibration import Fit, Scores
from src.predict.own.steps import OwnStep
from src.predict.step import Parts
from src.run.tables import write_text

LEVEL = 0.8
# Where runs are that answer predictions.
RUNS = (Path("runs"), Path("results"))
COMMAND = "predict"


@dataclass(frozen=True)
class Prediction:
    """The prediction of a run's step.

    Attributes:
        step: what is predicted.
        parts: its seconds.
        low, high: between which a step takes as long, in 80 of 100 cases.
        basis: `calibrated` by runs of its strategy and model, or `measured` by the profile alone.
        note: what else there is to say.
    """

    step: OwnStep
    parts: Parts
    low: float
    high: float
    basis: str
    note: str

    @property
    def entry(self) -> Entry:
        """Return the prediction as the ledger has it."""
        config = self.step.config
        return Entry(
            command=COMMAND,
            kind=calibration.strategy_of(self.step),
            what=Path(config.out).name,
            signature=runs.signature(config),
            unit="seconds",
            basis=self.basis,
            predicted=self.parts.seconds,
            low=self.low,
            high=self.high,
        )


def predict(
    words: Sequence[str],
    profile: Path,
    given: Sequence[Path],
    seed: int,
    changes: Mapping[str, float],
    timelines: Path | None = None,
) -> int:
    """Predict each cell of a command line, print a table, and add it to the ledger.

    Args:
        words: those of a sweep of `src.train`.
        profile: path of a profile, or of its folder.
        given: folders of runs that calibrate.
        seed: of the folds from which intervals are had.
        changes: how many times as fast the machine is as it was measured (`what_if`).
        timelines: a folder for the simulated steps as Chrome traces; `None` writes none.

    Returns 0, or 1 where no cell can be predicted.

    Raises:
        ConfigError: for a mistake in the words, or a file that is no profile.
    """
    found = cost_profile.read(profile)
    cells = own_cells.of(words)
    known, left = runs.measured(runs.finished(given), found)
    for line in left:
        print(f"doesn't calibrate: {line}", file=sys.stderr)
    fit = calibration.fit(known)
    seen = calibration.scores(known, fit, seed) if known else Scores()
    fit = replace(fit, compute=changes.get("compute", 1.0))
    predictions: list[Prediction] = []
    reasons: list[str] = []
    for cell in cells:
        try:
            network = changes.get("network" if cell.across_hosts else "link", 1.0)
            step = steps.of(cell, found, network)
            predictions.append(_prediction(step, fit, seen))
        except ConfigError as error:
            reasons.append(f"{Path(cell.out).name}: {error}")
    # What is asked of another machine can't come on this one.
    elsewhere = bool(changes) or found.machine != cost_profile.machine()
    past = note([] if elsewhere else [each.entry for each in predictions])
    if predictions:
        _table(predictions, past)
    for line in reasons:
        print(line)
    if timelines is not None:
        _write_timelines(predictions, fit, timelines)
    return 0 if predictions else 1


def note(entries: Sequence[Entry]) -> list[Entry]:
    """Add predictions to the ledger; return all of which it is known what came.

    Where that can't be written an answer is worth no less: standard error has a line.
    """
    return [entry for entry in _added(entries) if entry.came is not None]


def _added(entries: Sequence[Entry]) -> list[Entry]:
    """Add predictions to the ledger, and return all of it."""
    past = ledger.read()
    if not entries and not past:
        return []
    answers = _answers(cost_profile.machine())
    try:
        return ledger.add(entries, answers)
    except OSError as error:
        lacks = ", and lacks what is predicted here" if entries else ""
        print(f"{ledger.PATH}: can't be written ({error.strerror}){lacks}", file=sys.stderr)
        return past


def came_on_described() -> runs.Answers:
    """Return what runs of this folder have measured on devices that data sheets describe, by signature."""
    return runs.answers_described(runs.finished([folder for folder in RUNS if folder.is_dir()]))


def show_ledger() -> int:
    """Print the ledger of predictions, with what has come of them."""
    from rich.console import Console
    from rich.table import Table

    every = _added([])
    table = Table("what", "kind", "basis", "predicted", "low", "high", "came", "off by", box=None)
    for entry in every:
        came = "" if entry.came is None else entry.shown(entry.came)
        off = "" if entry.error is None else f"{100 * entry.error:.1f} %"
        figures = map(entry.shown, (entry.predicted, entry.low, entry.high))
        table.add_row(entry.what, entry.kind, entry.basis, *figures, came, off)
    if every:
        Console(width=None if sys.stdout.isatty() else 200).print(table)
    for kind in sorted({entry.kind for entry in every}):
        print(f"{kind}: {ledger.so_far(every, kind)}")
    if not every:
        print(f"{ledger.PATH}: nothing was predicted yet")
    return 0


def _prediction(step: OwnStep, fit: Fit, seen: Scores) -> Prediction:
    parts = fit.parts(step)
    width, note = seen.width(step, LEVEL)
    known = all(key in seen.known for key in calibration.keys(step))
    return Prediction(
        step,
        parts,
        parts.seconds * math.exp(-width),
        parts.seconds * math.exp(width),
        "calibrated" if known else "measured",
        note,
    )


def _write_timelines(predictions: Sequence[Prediction], fit: Fit, folder: Path) -> None:
    """Write each predicted step as a Chrome trace, which can be laid beside a run's `timeline.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in predictions:
        found = each.step.timelines(fit.of_machine)
        if found is not None:
            path = folder / f"{Path(each.step.config.out).name}.json"
            write_text(path, json.dumps(chrome_trace(found)))
            print(path)


def _answers(machine: str) -> runs.Answers:
    """Return what the runs of this folder have measured, here or on described devices, by signature."""
    there = runs.finished([folder for folder in RUNS if folder.is_dir()])
    return {**runs.answers(there, machine), **runs.answers_described(there)}


def _table(predictions: Sequence[Prediction], past: Sequence[Entry]) -> None:
    """Print predictions, a row each, and how far off their kinds have been."""
    from rich.console import Console
    from rich.table import Table

    titles = ("run", "step", "80 % interval", "samples/s", "compute", "exchange", "bubble", "other", "basis")
    table = Table(*titles, box=None)
    for each in predictions:
        parts, config = each.parts, each.step.config
        shares = [part / parts.seconds for part in (parts.compute, parts.exchange, parts.bubble, parts.other)]
        table.add_row(
            Path(config.out).name,
            f"{1e3 * parts.seconds:.4g} ms",
            f"{1e3 * each.low:.4g} to {1e3 * each.high:.4g}",
            f"{config.global_batch / parts.seconds:.4g}",
            *[f"{100 * share:.0f} %" for share in shares],
            each.basis,
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    said: dict[str, None] = {}
    for each in predictions:
        kind = calibration.strategy_of(each.step)
        said[f"{kind}: {ledger.so_far(past, kind)}" + (f"; {each.note}" if each.note else "")] = None
    for line in said:
        print(line)

"""Keep every prediction that was printed, and what came once such a run exists: `predictions.csv`.

Nothing is ever removed from it: whoever reads a prediction sees how far off those of its kind have been.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from src.config.mistakes import ConfigError
from src.machine.file_locks import alone
from src.run.tables import write_table

PATH = Path("predictions.csv")
FIELDS = (
    "predicted_at", "command", "kind", "what", "signature", "unit", "basis",
    "predicted", "low", "high", "came", "came_at", "run",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A prediction in the ledger.

    Attributes:
        command: that made it: `predict` or `fits`.
        kind: of prediction, whose errors are told together, as `ddp backend`, or `ddp on a100_80gb`.
        what: the run's name.
        signature: what the run that answers it has.
        unit: of the figures: `seconds` of a step, or `bytes` that a device holds.
        basis: on what it rests.
        predicted, low, high: the figure, and its 80 % interval.
        predicted_at: seconds since 1970.
        came: what was measured, `None` so far; from `came_at` on, by a `run`.
    """

    command: str
    kind: str
    what: str
    signature: str
    unit: str
    basis: str
    predicted: float
    low: float
    high: float
    predicted_at: float = 0.0
    came: float | None = None
    came_at: float | None = None
    run: str = ""

    @property
    def error(self) -> float | None:
        """Return how far off it was, as a part of what came."""
        return None if self.came is None else abs(self.predicted / self.came - 1)

    def shown(self, figure: float) -> str:
        """Return one of its figures as text."""
        return f"{figure / 2**30:.4g} GiB" if self.unit == "bytes" else f"{1e3 * figure:.4g} ms"


# By signature, (when it began, what was measured, where) of runs, in any order.
Answers = Mapping[str, Sequence[tuple[float, float, str]]]


def read(path: Path = PATH) -> list[Entry]:
    """Return the ledger's entries, in order; none where there is no ledger.

    Raises:
        ConfigError: for a file that isn't one.
    """
    if not path.exists() or not path.stat().st_size:
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != FIELDS:
            raise ConfigError(f"{path}: isn't the ledger of predictions; move it away")
        try:
            return [_entry(row) for row in reader]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: has a line that can't be read: {error}") from error


def add(entries: Sequence[Entry], answers: Answers, path: Path = PATH) -> list[Entry]:
    """Add entries, and to those of before what has come of them; return all.

    The first run that began to be measured after a prediction was made answers it.
    """
    with alone(path.absolute(), "the ledger of predictions"):
        now = time.time()
        known = [_answered(entry, answers) for entry in read(path)]
        every = known + [Entry(**{**vars(entry), "predicted_at": now}) for entry in entries]
        if every:
            write_table(path, FIELDS, [vars(entry) for entry in every])
        return every


def so_far(entries: Sequence[Entry], kind: str) -> str:
    """Say how far off predictions of a kind have been, as "12 of its kind: median 2.1 %, worst 7 %"."""
    errors = [entry.error for entry in entries if entry.kind == kind and entry.error is not None]
    if not errors:
        return "none of its kind has been run"
    return f"{len(errors)} of its kind: median {100 * median(errors):.1f} %, worst {100 * max(errors):.0f} %"


def _answered(entry: Entry, answers: Answers) -> Entry:
    """Return an entry with what has come of it, if that is new."""
    later = [each for each in answers.get(entry.signature, ()) if each[0] > entry.predicted_at]
    if entry.came is not None or not later:
        return entry
    began, came, run = min(later)
    return Entry(**{**vars(entry), "came": came, "came_at": began, "run": run})


def _entry(row: Mapping[str, str]) -> Entry:
    numbers = {key: float(row[key]) for key in ("predicted_at", "predicted", "low", "high")}
    came = {key: float(row[key]) if row[key] else None for key in ("came", "came_at")}
    return Entry(**{**row, **numbers, **came})  # type: ignore[arg-type]

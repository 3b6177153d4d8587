"""A rank's tables while it trains, `steps.csv` and `epochs.csv`: whole rows, also after a kill."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from src.rundir import whole

STEP_FIELDS = ("epoch", "step", "seconds", "samples", "loss", "staleness")
EPOCH_FIELDS = (
    "epoch",
    "seconds",
    "train_loss",
    "train_accuracy",
    "loss",
    "accuracy",
    "validation_seconds",
)
Rows = list[dict[str, str]]


class RankFiles:
    """The tables in `folder` (`<out>/ranks/<rank>`); `None` is an empty cell."""

    def __init__(self, folder: Path) -> None:
        self._steps_path = folder / "steps.csv"
        self._epochs_path = folder / "epochs.csv"
        self._steps: TextIO | None = None
        self._kept_steps: Rows = []
        self._kept_epochs: Rows = []

    def keep(self, step: int, *, batches: int, per_epoch: int) -> tuple[Rows, Rows]:
        """What the job had recorded before it was started again, up to this step of the rank's and so many
        batches of all ranks: those rows stand once the tables are opened, and nothing else that they held."""
        self._kept_steps = [row for row in _rows(self._steps_path) if int(row["step"]) <= step]
        self._kept_epochs = []
        for row in _rows(self._epochs_path):
            if round(float(row["epoch"]) * per_epoch) > batches:
                break
            self._kept_epochs.append(row)
        return self._kept_steps, self._kept_epochs

    def open(self) -> None:
        """From here on the tables hold what is kept, and what follows."""
        _replace(self._steps_path, STEP_FIELDS, self._kept_steps)
        if self._kept_epochs:
            _replace(self._epochs_path, EPOCH_FIELDS, self._kept_epochs)
        else:
            self._epochs_path.unlink(missing_ok=True)
        self._steps = self._steps_path.open("a", newline="")

    def write_steps(self, rows: Iterable[Sequence[Any]]) -> None:
        """Appends rows of `STEP_FIELDS`, to the disk."""
        if self._steps is None:
            self.open()
        assert self._steps is not None
        csv.writer(self._steps).writerows(rows)
        self._steps.flush()

    def write_epoch(self, row: Mapping[str, Any]) -> None:
        """Appends a row of `EPOCH_FIELDS`."""
        new = not self._epochs_path.exists()
        with self._epochs_path.open("a", newline="") as file:
            writer = csv.DictWriter(file, EPOCH_FIELDS)
            if new:
                writer.writeheader()
            writer.writerow(row)

    def close(self) -> None:
        """No steps follow."""
        if self._steps is not None:
            self._steps.close()


def _replace(path: Path, fields: Sequence[str], rows: Rows) -> None:
    with whole(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)


def _rows(path: Path) -> Rows:
    """Whole rows of a table; a killed rank may have left half a line."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]

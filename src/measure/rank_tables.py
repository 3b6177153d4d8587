"""Write a rank's tables `steps.csv` and `epochs.csv` while it trains; after a kill they hold whole rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from src.run import files
from src.run.tables import EPOCH_FIELDS, STEP_FIELDS, Row, read_table, write_table


class RankTables:
    """The tables of a rank in `folder` (`<out>/ranks/<rank>`); `None` is an empty cell."""

    def __init__(self, folder: Path) -> None:
        self._steps_path = folder / files.STEPS
        self._epochs_path = folder / files.EPOCHS
        self._steps: TextIO | None = None
        self._kept_steps: list[Row] = []
        self._kept_epochs: list[Row] = []

    def keep(self, step: int, *, batches: int, per_epoch: int) -> tuple[list[Row], list[Row]]:
        """Keep rows that were recorded before the job was started again; return (steps, evaluations).

        These are the rank's steps up to `step`, and the evaluations within the first `batches` global
        batches, `per_epoch` of which make an epoch. All other rows are removed by `open`.
        """
        self._kept_steps = [row for row in read_table(self._steps_path) if row["step"] <= step]
        self._kept_epochs = []
        for row in read_table(self._epochs_path):
            if round(row["epoch"] * per_epoch) > batches:
                break
            self._kept_epochs.append(row)
        return self._kept_steps, self._kept_epochs

    def open(self) -> None:
        """Write the kept rows, and open the tables for further ones."""
        whole = [{**row, **{key: int(row[key]) for key in _COUNTS}} for row in self._kept_steps]
        write_table(self._steps_path, STEP_FIELDS, whole)
        if self._kept_epochs:
            evaluations = [{**row, "step": int(row["step"])} for row in self._kept_epochs]
            write_table(self._epochs_path, EPOCH_FIELDS, evaluations)
        else:
            self._epochs_path.unlink(missing_ok=True)
        self._steps = self._steps_path.open("a", newline="")

    def add_steps(self, rows: Iterable[Sequence[Any]]) -> None:
        """Append rows with the columns `STEP_FIELDS` to `steps.csv`, and flush them to the file."""
        if self._steps is None:
            self.open()
        assert self._steps is not None
        csv.writer(self._steps).writerows(rows)
        self._steps.flush()

    def add_epoch(self, row: Mapping[str, Any]) -> None:
        """Append a row with the columns `EPOCH_FIELDS` to `epochs.csv`."""
        new = not self._epochs_path.exists()
        with self._epochs_path.open("a", newline="") as file:
            writer = csv.DictWriter(file, EPOCH_FIELDS)
            if new:
                writer.writeheader()
            writer.writerow(row)

    def close(self) -> None:
        """Close the tables after the last step."""
        if self._steps is not None:
            self._steps.close()


# Columns that are whole numbers.
_COUNTS = ("epoch", "step", "samples")

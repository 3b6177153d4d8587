"""Define the record that a rank leaves to the parent: its tables, and at the end its `record.json`.

The tables, `steps.csv` and `epochs.csv`, are written while it trains; after a kill they hold whole rows.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypedDict

from src.run import files
from src.run.tables import EPOCH_FIELDS, STEP_FIELDS, Row, read_table, write_table

# Columns of `steps.csv` that are whole numbers.
COUNTS = ("epoch", "step", "samples")


class RankRecord(TypedDict, total=False):
    """The facts of one rank; a figure that was not measured is `None` or absent.

    Times are seconds, moments seconds since 1970. The *window* is the timed part of the training, after the
    warm-up; what ran off the clock (evaluations, checkpoints) is no part of its seconds.
    """

    status: str  # ok, time_limit, diverged
    steps: int
    train_seconds: float
    startup_seconds: float  # from the command to the first step
    import_seconds: float  # from the command until the framework was imported
    off_clock: list[tuple[float, float]]  # moments of each pause
    window: tuple[float, float]  # moments of its beginning and end
    window_seconds: float
    input_seconds: float | None  # within the window: waiting for batches
    communication_seconds: float | None  # within the window: waiting for other ranks
    busy_seconds: float | None  # within the window: computing
    exchange_seconds: float  # within an asynchronous worker's window: fetching and pushing
    fetched_bytes: int
    pushed_bytes: int
    payload_bytes: int
    exchanges: list[list[Any]]  # (axis, kind, ranks, exchanges a step, bytes a step), where they are counted
    traffic: dict[str, tuple[int, int]]  # by host: bytes sent and received in training, as rank 0 counts them
    seconds_to_target: float
    steps_to_target: float
    steps_per_epoch: int
    parameters: int
    tokens_per_sample: int | None  # where samples are sequences of tokens
    batch_statistics: bool  # whether the model normalises by statistics of a batch
    draws_random_numbers: bool  # whether a forward pass in training does
    moves_buffers: list[str]  # names of those that a forward pass in training changes, but BatchNorm's
    computes_over_batch: bool  # whether a sample's outputs depend on the others, but for BatchNorm
    flops_per_sample: float  # forward and backward
    saved_tensor_bytes_per_sample: float  # what autograd keeps of each sample of a micro-batch
    saved_tensor_bytes_fixed: float  # and of each micro-batch besides
    saved_tensors_bytes: int  # of a stage, at its most
    weights_bytes: int  # that the rank holds after its last step
    gradients_bytes: int
    optimizer_bytes: int
    largest_microbatch: int  # samples, where that isn't a worker's part of the batch by micro-batches
    peak_flops: float  # of a worker's device; which one it is says `peak_source`
    peak_source: str
    peak_device: str
    peak_precision: str
    peak_measured_flops: float
    peak_official_flops: float | None
    memory_peak_bytes: int  # above the level
    memory_level_bytes: int  # resident set after imports
    validation_samples_per_second: float
    mean_rank_train_seconds: float
    clock_gap_max: int
    rounding_gap: float | None  # what one last digit in each weight does to the first losses
    rounding_losses: list[float | None]  # those from the changed weights
    rounding_seconds: float  # training for these, after all else
    probe_before: float | None  # GFLOP/s a core
    probe_after: float | None


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
        whole = [{**row, **{key: int(row[key]) for key in COUNTS}} for row in self._kept_steps]
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

"""Turn what a run has recorded so far, or in all, into points of MLflow's curves, known by name and step.

| name | over | is |
| --- | --- | --- |
| `train/loss` `train/step_seconds` | steps | of each step |
| `evaluation/loss` `evaluation/seconds` `evaluation/<metric>` `train/<metric>` | steps | of each evaluation |
| `system/...` | samples of the hardware | by MLflow's own names, and each rank's |
| others | - | final figures, by their names in metrics.json |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from src.measure.merge import global_losses
from src.run import files
from src.run.tables import GrowingTable, Row, read_table

# By column of an evaluation's row.
EVALUATION = {
    "train_accuracy": "train/accuracy",
    "loss": "evaluation/loss",
    "accuracy": "evaluation/accuracy",
    "validation_seconds": "evaluation/seconds",
}
# By column of an evaluation's row, which holds metrics by name as JSON; accuracy has columns of its own.
METRICS = {"metrics": "evaluation", "train_metrics": "train"}
# Keys of metrics.json that are settings, or the last values of curves.
NO_FIGURES = (
    "workers", "batch", "microbatches", "seed", "epochs", "shared_device",
    "loss", "accuracy", "train_accuracy", "score",
)  # fmt: skip
# By column of the trace: MLflow's end of the name of a system metric, and the factor to its unit.
OF_DEVICE = {
    "utilization": ("utilization_percentage", 100.0),
    "memory_bytes": ("memory_usage_megabytes", 1e-6),
    "power_watts": ("power_usage_watts", 1.0),
}
OF_RANK = {
    "disk_read_bytes": ("disk_read_megabytes", 1e-6),
    "disk_written_bytes": ("disk_written_megabytes", 1e-6),
}
OF_HOST = {
    "host_utilization": ("cpu_utilization_percentage", 100.0),
    "host_memory_bytes": ("system_memory_usage_megabytes", 1e-6),
    "network_sent_bytes": ("network_transmit_megabytes", 1e-6),
    "network_received_bytes": ("network_receive_megabytes", 1e-6),
}


class Point(NamedTuple):
    """A point of a curve; `time` is in seconds since 1970. A run has at most one of a name and step."""

    name: str
    value: float | None
    step: int
    time: float


class TrainingCurves:
    """Makes points of one rank's steps and of evaluations, which may come little by little.

    The rows have durations alone: the time of a point is that of the first step's begin and all steps and
    evaluations since.
    """

    def __init__(self, begun: float) -> None:
        """Begin with the first step, at `begun` seconds since 1970."""
        self._now = begun
        self._waiting: list[Row] = []

    def add(self, steps: Iterable[Row], evaluations: Iterable[Row]) -> Iterator[Point]:
        """Yield the points of further rows; each evaluation comes with the steps before it, or later."""
        self._waiting += evaluations
        for row in steps:
            while self._waiting and self._waiting[0]["step"] < row["step"]:
                yield from self._evaluated(self._waiting.pop(0))
            self._now += row["seconds"]
            yield Point("train/loss", row["loss"], int(row["step"]), self._now)
            yield Point("train/step_seconds", row["seconds"], int(row["step"]), self._now)
        while self._waiting:
            yield from self._evaluated(self._waiting.pop(0))

    def _evaluated(self, row: Row) -> Iterator[Point]:
        """Yield the points of an evaluation."""
        self._now += row["validation_seconds"] or 0.0
        for column, name in EVALUATION.items():
            yield Point(name, row[column], int(row["step"]), self._now)
        for column, group in METRICS.items():
            for metric, value in json.loads(row.get(column) or "{}").items():
                if metric != "accuracy":
                    yield Point(f"{group}/{metric}", value, int(row["step"]), self._now)


class SystemCurves:
    """Makes points of the hardware's trace, whose rows may come little by little; a step is one sample."""

    def __init__(self) -> None:
        self._time: float | None = None
        self._sample = -1
        # Hosts of which this sample has been told.
        self._hosts: set[str] = set()

    def add(self, trace: Iterable[Row]) -> Iterator[Point]:
        """Yield the points of further rows; those of one sample have the same time."""
        for row in trace:
            if row["time"] != self._time:
                self._time, self._sample = row["time"], self._sample + 1
                self._hosts.clear()
            device = str(row["device"])
            prefixes = [f"rank_{row['rank']:.0f}_{device}"]
            if device.startswith("gpu"):
                prefixes.append(f"gpu_{device.removeprefix('gpu')}")
            for column, (name, factor) in OF_RANK.items():
                yield self._point(f"{prefixes[0]}_{name}", row.get(column), factor)
            for column, (name, factor) in OF_DEVICE.items():
                for prefix in prefixes:
                    yield self._point(f"{prefix}_{name}", row.get(column), factor)
            # The only host has no name.
            host = "" if row.get("host") is None else f"{row['host']}_"
            for column, (name, factor) in OF_HOST.items() if host not in self._hosts else ():
                yield self._point(host + name, row.get(column), factor)
            self._hosts.add(host)

    def _point(self, name: str, value: float | None, factor: float) -> Point:
        """Return the point `value` times `factor` of the present sample."""
        assert self._time is not None
        return Point(f"system/{name}", None if value is None else value * factor, self._sample, self._time)


def final_figures(metrics: Mapping[str, Any], time: float) -> list[Point]:
    """Return the measured figures of a run's `metrics` as points of the moment `time`."""
    return [
        Point(key, float(value), 0, time)
        for key, value in metrics.items()
        if isinstance(value, int | float) and key not in NO_FIGURES
    ]


class LiveRecords:
    """Follows the tables that the ranks of a run write while they train.

    The steps are rank 0's. The loss of a synchronous one is the mean over the global batch, as in the run's
    final `steps.csv`: it is known once all ranks have recorded the step.
    """

    def __init__(self, out: Path, ranks: Sequence[int], *, synchronous: bool) -> None:
        """Follow these ranks, rank 0 among them, of the run in the directory `out`."""
        followed = ranks if synchronous else [0]
        self._steps = {rank: GrowingTable(files.rank_folder(out, rank) / files.STEPS) for rank in followed}
        self._rows: dict[int, dict[float, Row]] = {rank: {} for rank in followed}
        self._epochs = GrowingTable(files.rank_folder(out, 0) / files.EPOCHS)
        self._trace = GrowingTable(out / files.TRACE)
        self._curves: TrainingCurves | None = None
        self._system = SystemCurves()

    def read(self) -> list[Point]:
        """Return the points that were recorded since the last call.

        After a restart of the job those since the checkpoint come once more.
        """
        for rank, table in self._steps.items():
            new = table.read()
            if table.replaced:
                self._rows[rank].clear()
            self._rows[rank] |= {row["step"]: row for row in new}
            if rank == 0 and (self._curves is None or table.replaced) and table.written:
                passed = sum(row["seconds"] for row in new)
                self._curves = TrainingCurves(table.written - passed)
        # Read after the steps, so that none has come before an evaluation that preceded it.
        evaluations = self._epochs.read()
        points = list(self._system.add(self._trace.read()))
        if self._curves is not None:
            points += self._curves.add(self._complete_steps(), evaluations)
        return points

    def _complete_steps(self) -> list[Row]:
        """Take the steps of rank 0 that all ranks have recorded, with their loss."""
        last = min(max(rows, default=0.0) for rows in self._rows.values())
        taken = {
            rank: [rows.pop(step) for step in sorted(rows) if step <= last]
            for rank, rows in self._rows.items()
        }
        losses = global_losses(taken) if len(taken) > 1 else {}
        return [{**row, "loss": losses.get(row["step"], row["loss"])} for row in taken[0]]


def recorded_points(folder: Path, *, started: float, ended: float, synchronous: bool) -> list[Point]:
    """Return all points of a run that has ended, from its directory `folder`.

    A run whose parent was killed has no result files: the points are then those that its ranks recorded.
    It was `started` and `ended` at these seconds since 1970.
    """
    if not (folder / files.METRICS).exists():
        ranks = list(files.of_every_rank(folder, files.STEPS))
        return LiveRecords(folder, ranks, synchronous=synchronous).read() if 0 in ranks else []
    metrics = json.loads((folder / files.METRICS).read_text())
    steps = [row for row in read_table(folder / files.STEPS) if row["rank"] == 0]
    curves = TrainingCurves(started + (metrics["startup_seconds"] or 0.0))
    return [
        *curves.add(steps, read_table(folder / files.EPOCHS)),
        *SystemCurves().add(read_table(folder / files.TRACE)),
        *final_figures(metrics, ended),
    ]

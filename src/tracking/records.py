"""Read what a run has recorded so far, or in all, as points of curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from src.measure.merge import global_losses
from src.run import files
from src.run.tables import GrowingTable, Row, read_table
from src.tracking.points import Point, SystemCurves, TrainingCurves, final_figures


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

    Args:
        folder: the run's directory.
        started: when the run began, in seconds since 1970.
        ended: when it ended.
        synchronous: whether all ranks complete each step together.
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

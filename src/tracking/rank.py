"""Log rank 0's steps and evaluations into the MLflow run that the parent has opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from src.tracking.store import Warned, client_of, log_points


class RankTracker:
    """A listener to rank 0's record, which logs steps and evaluations into an MLflow run.

    Steps are kept until the next evaluation, so that nothing is logged while steps are timed.
    """

    def __init__(self, uri: str, run_id: str) -> None:
        """Log into the run `run_id` of the MLflow store at `uri`."""
        self._uri = uri
        self._run_id = run_id
        self._steps: list[Mapping[str, Any]] = []

    def on_start(self) -> None:
        """Do nothing: the parent has opened the MLflow run."""

    def on_steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep the rows of completed steps until the next evaluation."""
        self._steps += rows

    def on_evaluation(self, row: Mapping[str, Any], step: int) -> None:
        """Log the steps since the last evaluation, and a new evaluation.

        Steps are logged as `step/*` over steps. The evaluation is logged as `evaluation/*` over steps and, at
        the end of an epoch, as `epoch/*` over epochs.

        Args:
            row: the figures of the evaluation, and the `epoch`, which may be a fraction.
            step: number of steps completed before the evaluation.
        """
        steps, self._steps = self._steps, []
        points = [
            (f"step/{key}", each[key], int(each["step"])) for each in steps for key in ("loss", "seconds")
        ]
        figures = {key: value for key, value in row.items() if key != "epoch"}
        points += [(f"evaluation/{key}", value, step) for key, value in figures.items()]
        if float(row["epoch"]).is_integer():
            points += [(f"epoch/{key}", value, int(row["epoch"])) for key, value in figures.items()]
        with Warned("the MLflow store can't be reached; metrics stay on disk"):
            log_points(client_of(self._uri), self._run_id, points)

    def on_finish(self) -> None:
        """Do nothing: the parent closes the MLflow run."""

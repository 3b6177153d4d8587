"""Read the last step of each metric of a run, which MLflow's client keeps in a private attribute."""

from __future__ import annotations

from typing import Any


def latest_steps(run: Any) -> dict[str, int]:
    """Return the greatest step of each metric of an `mlflow.entities.Run`, by the metric's name."""
    return {metric.key: metric.step for metric in run.data._metric_objs}

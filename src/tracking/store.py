"""Reach the MLflow store; a store that can't be reached never stops a training.

MLflow is imported inside the functions, because the import takes a second, for which a user who has mistyped
a word shouldn't wait.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from src.config import Config

EXPERIMENT = "scaleguide"
DEFAULT_URI = "sqlite:///mlflow.db"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
# MLflow's limit for one log_batch call.
BATCH = 1000
# (name, value, step) and, unless that is now, the time in seconds since 1970.
Point = tuple[str, float | None, int] | tuple[str, float | None, int, float]


def tracking_uri(config: Config) -> str | None:
    """Return the address of the store that tracks a run, `None` where the configuration asks for none."""
    return None if config.tracking["backend"] == "none" else default_uri()


def default_uri() -> str:
    """Return the store's address: MLFLOW_TRACKING_URI, by default `DEFAULT_URI`, a local file."""
    return os.environ.get(URI_VARIABLE) or DEFAULT_URI


def client_of(uri: str) -> Any:
    """Return an MLflow client of the store at `uri` that gives up soon on a server that doesn't answer."""
    # A server that is away shall not hold up a training for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    from mlflow import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)

    return MlflowClient(uri)


def experiment_id(client: Any, uri: str) -> str:
    """Return MLflow's id of the experiment of all runs, which is created in the store at `uri` if missing."""
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is not None:
        return experiment.experiment_id
    from mlflow.exceptions import MlflowException

    local = uri.startswith("sqlite")
    try:
        return client.create_experiment(
            EXPERIMENT, Path("mlartifacts").absolute().as_uri() if local else None
        )
    except MlflowException:
        # Another run made it at the same time.
        return client.get_experiment_by_name(EXPERIMENT).experiment_id


def log_points(client: Any, run_id: str, points: Iterable[Point]) -> None:
    """Log points of curves into an MLflow run, `BATCH` of them a request, and skip those without a value."""
    from mlflow.entities import Metric

    now = time.time()
    metrics = []
    for name, value, step, *moment in points:
        if value is not None:
            metrics.append(Metric(name, float(value), int((moment or [now])[0] * 1000), step))
    for start in range(0, len(metrics), BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + BATCH])


class Warned:
    """A context manager that turns an error in its block into one line on standard error.

    Attributes:
        happened: whether an error has happened.
    """

    def __init__(self, sentence: str) -> None:
        """Begin the line on standard error with `sentence`; the error's reason follows."""
        self._sentence = sentence
        self.happened = False

    def __enter__(self) -> Warned:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self.happened = True
        reason = str(error).strip().splitlines() or [kind.__name__]
        print(f"warning: {self._sentence} ({reason[0][:200]})", file=sys.stderr)
        return True

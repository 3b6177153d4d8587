"""Add to the MLflow runs of a study what only its aggregation tells: speed-up, parity and the verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from src.config.tracking_address import database_path
from src.tracking.store import Warned, client_at, default_uri

FIGURES = ("speedup", "scaling_efficiency", "parity_gap")
TAGS = ("parity", "verdict")


def add_figures(rows: Iterable[Mapping[str, Any]]) -> int:
    """Add the figures of a study's rows to their MLflow runs; return how many runs got something new.

    A row has `mlflow_run_id`, and those of `FIGURES` and `TAGS` that its run has. A figure that a run has
    already isn't added again. Runs of another store are left out, and a store that isn't there, or doesn't
    answer, costs one warning.
    """
    tracked = [row for row in rows if row.get("mlflow_run_id")]
    uri = default_uri()
    path = database_path(uri)
    if not tracked or (path is not None and not path.exists()):
        return 0
    added = 0
    with Warned("speed-up and parity aren't added to its runs"):
        client = client_at(uri)
        for row in tracked:
            added += _add(client, row)
    return added


def _add(client: Any, row: Mapping[str, Any]) -> bool:
    """Add one row's figures to its run; return whether there was anything new."""
    from mlflow.entities import Metric, RunTag
    from mlflow.exceptions import MlflowException

    run_id = row["mlflow_run_id"]
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            # DVC has restored a run from another machine's cache.
            return False
        raise
    # MLflow shows the newest: a study that was measured again may have other figures.
    now = int(time.time() * 1000)
    metrics = [
        Metric(name, float(value), now, 0)
        for name in FIGURES
        if (value := row.get(name)) is not None
        and math.isfinite(value)
        and run.data.metrics.get(name) != float(value)
    ]
    tags = [
        RunTag(name, str(word))
        for name in TAGS
        if (word := row.get(name)) and run.data.tags.get(name) != str(word)
    ]
    if metrics or tags:
        client.log_batch(run_id, metrics=metrics, tags=tags)
    return bool(metrics or tags)

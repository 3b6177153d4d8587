"""MLflow: one run a training, opened and closed by the parent, logged into by rank 0.

MLflow is imported inside the functions: it costs a second, and nobody should wait for it to learn
of a typing error.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.config import Config

EXPERIMENT = "scaleguide"
DEFAULT_URI = "sqlite:///mlflow.db"
# MLflow's limit for one log_batch call.
BATCH = 1000
# Sweep runs stand under one parent run, made by the first cell and known to the others by this variable.
SWEEP_RUN = "SCALEGUIDE_SWEEP_RUN"
RESULT_FILES = (
    *("config.yaml", "metrics.json", "steps.csv", "workers.csv", "epochs.csv"),
    *("trace.csv", "environment.json"),
    *("partition.json", "placement.json", "timeline.json"),
)


def uri(config: Config) -> str | None:
    """Where runs are tracked; MLFLOW_TRACKING_URI overrides the embedded default."""
    if config.tracking["backend"] == "none":
        return None
    return os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


def _client(tracking_uri: str) -> Any:
    # A server that is away shall not hold up a training for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    from mlflow import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)

    return MlflowClient(tracking_uri)


def _experiment(client: Any, tracking_uri: str) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return found.experiment_id
    from mlflow.exceptions import MlflowException

    local = tracking_uri.startswith("sqlite")
    try:
        return client.create_experiment(
            EXPERIMENT, Path("mlartifacts").absolute().as_uri() if local else None
        )
    except MlflowException:
        # Another run made it at the same time.
        return client.get_experiment_by_name(EXPERIMENT).experiment_id


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys, for MLflow's flat parameters."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


class ParentTracker:
    """The parent's side of one MLflow run; every failure to reach the store becomes one warning."""

    def __init__(self, config: Config) -> None:
        self.uri = uri(config)
        self.run_id: str | None = None
        self._config = config
        self._client: Any = None

    def open(self, *, sweep: bool, known: str | None = None) -> None:
        """Starts the run, under the sweep's parent run where there is one, or goes on with a `known` one."""
        if self.uri is None:
            return
        if known is not None:
            self._client, self.run_id = _client(self.uri), known
            return
        config = self._config
        with _Warn("the MLflow store can't be reached; the run's files are kept and can be sent later"):
            self._client = _client(self.uri)
            experiment = _experiment(self._client, self.uri)
            tags = {
                "strategy": config.strategy["name"],
                "framework": config.framework,
                "model": config.model["name"],
                "dataset": config.dataset["name"],
                "hardware": config.hardware["name"],
                "workers": str(config.workers),
                "out": config.out,
            }
            if config.tracking["study"]:
                tags["study"] = config.tracking["study"]
            if sweep:
                if SWEEP_RUN not in os.environ:
                    parent = self._client.create_run(experiment, run_name="sweep", tags={"sweep": "parent"})
                    os.environ[SWEEP_RUN] = parent.info.run_id
                tags["mlflow.parentRunId"] = os.environ[SWEEP_RUN]
            self.run_id = self._client.create_run(
                experiment, tags=tags, run_name=Path(config.out).name
            ).info.run_id
            from mlflow.entities import Param

            described = {k: v for k, v in dataclasses.asdict(config).items() if k not in ("out", "overwrite")}
            values = {k: v for k, v in flatten(described).items() if not _unvarying(k)}
            params = [Param(key, str(value)[:500]) for key, value in values.items()]
            self._client.log_batch(self.run_id, params=params)

    def close(
        self, status: str, folder: Path, metrics: Mapping[str, Any], trace: list[dict[str, Any]]
    ) -> bool:
        """Logs result files, final figures and the hardware trace, and ends the run; `False` if that failed.

        `status` is MLflow's: FINISHED, FAILED or KILLED.
        """
        if self.run_id is None:
            return self.uri is None
        with _Warn("the MLflow store can't be reached; the run's files are kept") as warned:
            from mlflow.entities import Metric

            numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float)}
            final = [Metric(key, value, _now(), 0) for key, value in numbers.items()]
            self._log([*final, *_system_metrics(trace)])
            for name in RESULT_FILES:
                if (folder / name).exists():
                    self._client.log_artifact(self.run_id, str(folder / name))
            if (folder / "logs").is_dir():
                self._client.log_artifacts(self.run_id, str(folder / "logs"), "logs")
            self._client.set_terminated(self.run_id, status)
        return not warned.happened

    def _log(self, metrics: list[Any]) -> None:
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + BATCH])


def close_sweep(status: str) -> None:
    """Ends the sweep's parent run, if one was opened."""
    run_id = os.environ.pop(SWEEP_RUN, None)
    if run_id is not None:
        with _Warn("the MLflow store can't be reached; the sweep's parent run stays open"):
            _client(os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI).set_terminated(run_id, status)


def _unvarying(key: str) -> bool:
    return key.startswith(("strategy.supports", "strategy.allowed", "dataset.files", "dataset.sources")) or (
        ".allowed" in key
    )


def _now() -> int:
    import time

    return int(time.time() * 1000)


def _system_metrics(trace: list[dict[str, Any]]) -> list[Any]:
    """The hardware trace under MLflow's names, so that its UI shows it as system metrics."""
    from mlflow.entities import Metric

    names = {
        "utilization": ("utilization_percentage", 100.0),
        "memory_bytes": ("memory_usage_megabytes", 1e-6),
        "power_watts": ("power_usage_watts", 1.0),
    }
    found: list[Any] = []
    counts: dict[int, int] = {}
    for row in trace:
        step = counts[row["rank"]] = counts.get(row["rank"], -1) + 1
        kind = "gpu" if str(row["device"]).startswith("gpu") else "cpu"
        for field, (name, factor) in names.items():
            if row[field] is not None:
                key = f"system/rank_{int(row['rank'])}_{kind}_{name}"
                found.append(Metric(key, row[field] * factor, int(row["time"] * 1000), step))
    return found


class RankTracker:
    """Rank 0's side: metrics of steps and epochs, logged off the clock."""

    def __init__(self, tracking_uri: str, run_id: str) -> None:
        self._uri = tracking_uri
        self._run_id = run_id

    def steps(self, rows: list[dict[str, Any]]) -> None:
        """Logs `loss` and `step_seconds` over steps."""
        logged = [("loss", "step/loss"), ("seconds", "step/seconds")]
        self._log([(name, row[key], row["step"]) for row in rows for key, name in logged])

    def epoch(self, row: dict[str, Any], step: int) -> None:
        """Logs one evaluation: `evaluation/*` over steps, and at an epoch's end `epoch/*` over epochs."""
        figures = {key: value for key, value in row.items() if key != "epoch"}
        self._log([(f"evaluation/{key}", value, step) for key, value in figures.items()])
        if float(row["epoch"]).is_integer():
            self._log([(f"epoch/{key}", value, int(row["epoch"])) for key, value in figures.items()])

    def _log(self, points: list[tuple[str, float | None, int]]) -> None:
        with _Warn("the MLflow store can't be reached; metrics stay on disk"):
            from mlflow.entities import Metric

            client = _client(self._uri)
            metrics = [
                Metric(name, value, _now(), int(step)) for name, value, step in points if value is not None
            ]
            for start in range(0, len(metrics), BATCH):
                client.log_batch(self._run_id, metrics=metrics[start : start + BATCH])


class _Warn:
    """Turns an unreachable store into one line on stderr: tracking never stops a training."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self.happened = False

    def __enter__(self) -> _Warn:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self.happened = True
        reason = str(error).strip().splitlines() or [kind.__name__]
        print(f"warning: {self._sentence} ({reason[0][:200]})", file=sys.stderr)
        return True


def go(folder: Path, tracker: ParentTracker) -> None:
    """Tells the waiting ranks that the run is open, or that there is none."""
    from src.rundir import write

    write(folder / "ranks" / "go.json", json.dumps({"uri": tracker.uri, "run_id": tracker.run_id}))

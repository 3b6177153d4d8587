"""Open a training's MLflow run, log its results and close it: the parent's part of tracking."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from src.config import Config
from src.config.schema import flatten
from src.run import files
from src.run.tables import Row, write_text
from src.tracking.store import Point, Warned, client_of, default_uri, experiment_id, log_points, tracking_uri

# Variable with the id of the MLflow run under which all runs of a sweep stand; the first cell sets it.
SWEEP_RUN = "SCALEGUIDE_SWEEP_RUN"
# By column of the trace: the name by which MLflow's UI recognizes a system metric, and the factor to MLflow's
# unit.
SYSTEM_METRICS = {
    "utilization": ("utilization_percentage", 100.0),
    "memory_bytes": ("memory_usage_megabytes", 1e-6),
    "power_watts": ("power_usage_watts", 1.0),
}
# Parts of the configuration that describe a choice and are the same for every run of it.
DESCRIBING = ("strategy.supports", "dataset.files", "dataset.sources")


class ParentTracker:
    """Opens, fills and closes one MLflow run; an error of the MLflow store becomes a warning.

    Attributes:
        uri: address of the store, `None` where nothing is tracked.
        run_id: MLflow's id of the run, `None` where no run is open.
    """

    def __init__(self, config: Config) -> None:
        """Prepare to track a training with this configuration."""
        self.uri = tracking_uri(config)
        self.run_id: str | None = None
        self._config = config
        self._client: Any = None
        self._warned = Warned("the MLflow store can't be reached; the run's files are kept")

    def open(self, *, sweep: bool) -> None:
        """Open the MLflow run of the training; with `sweep` under the sweep's parent run, made if missing."""
        if self.uri is None:
            return
        with Warned("the MLflow store can't be reached; the run's files are kept and can be sent later"):
            self._client = client_of(self.uri)
            experiment = experiment_id(self._client, self.uri)
            tags = self._tags()
            if sweep:
                if SWEEP_RUN not in os.environ:
                    parent = self._client.create_run(experiment, run_name="sweep", tags={"sweep": "parent"})
                    os.environ[SWEEP_RUN] = parent.info.run_id
                tags["mlflow.parentRunId"] = os.environ[SWEEP_RUN]
            name = Path(self._config.out).name
            self.run_id = self._client.create_run(experiment, tags=tags, run_name=name).info.run_id
            from mlflow.entities import Param

            params = [Param(key, str(value)[:500]) for key, value in self._params().items()]
            self._client.log_batch(self.run_id, params=params)

    def open_for_ranks(self, out: Path, sweep: bool) -> None:
        """Open the MLflow run, and tell the waiting ranks its id by a file in the run's directory `out`.

        If no run can be opened, the file says so. With `sweep` the run stands under the sweep's parent run.
        """
        self.open(sweep=sweep)
        opened = {"uri": self.uri, "run_id": self.run_id}
        write_text(out / files.RANKS / files.GO, json.dumps(opened))

    def reopen(self, run_id: str) -> None:
        """Continue the MLflow run `run_id`, which was opened earlier."""
        if self.uri is not None:
            self._client, self.run_id = client_of(self.uri), run_id

    def _tags(self) -> dict[str, str]:
        """Return the tags of the MLflow run."""
        config = self._config
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
        return tags

    def _params(self) -> dict[str, Any]:
        """Return the parameters of the MLflow run: the configuration without what only describes choices."""
        flat = flatten(dataclasses.asdict(self._config))
        return {
            key: value
            for key, value in flat.items()
            if key not in ("out", "overwrite")
            and not key.startswith(DESCRIBING)
            and ".allowed" not in key
            and value != {}
        }

    def log_results(self, folder: Path, metrics: Mapping[str, Any], trace: Sequence[Row]) -> None:
        """Log result files, final figures and the hardware trace.

        Args:
            folder: the run's directory.
            metrics: the contents of the run's metrics.json.
            trace: the rows of the run's trace.csv.
        """
        if self.run_id is None:
            return
        with self._warned:
            final: list[Point] = [(k, v, 0) for k, v in metrics.items() if isinstance(v, int | float)]
            log_points(self._client, self.run_id, [*final, *_system_metrics(trace)])
            for name in files.RESULTS:
                if name != files.ENVIRONMENT and (folder / name).exists():
                    self._client.log_artifact(self.run_id, str(folder / name))
            if (folder / files.LOGS).is_dir():
                self._client.log_artifacts(self.run_id, str(folder / files.LOGS), files.LOGS)

    def close(self, status: str, folder: Path, *, discarded: bool = False) -> bool:
        """Log `environment.json`, whose timings are complete by now, and close the MLflow run.

        Args:
            status: MLflow's status of the run: FINISHED, FAILED or KILLED.
            folder: the run's directory.
            discarded: whether the run is measured again, because it was disturbed; the MLflow run is tagged.

        Returns:
            Whether the store has all of the run, or nothing is tracked.
        """
        if self.run_id is None:
            return self.uri is None
        if not self._warned.happened:
            with self._warned:
                if (folder / files.ENVIRONMENT).exists():
                    self._client.log_artifact(self.run_id, str(folder / files.ENVIRONMENT))
                if discarded:
                    self._client.set_tag(self.run_id, "discarded", "disturbed")
                self._client.set_terminated(self.run_id, status)
        return not self._warned.happened


def close_sweep(status: str) -> None:
    """Close the sweep's parent run in MLflow, if one was opened, with MLflow's `status`."""
    run_id = os.environ.pop(SWEEP_RUN, None)
    if run_id is not None:
        with Warned("the MLflow store can't be reached; the sweep's parent run stays open"):
            client_of(default_uri()).set_terminated(run_id, status)


def _system_metrics(trace: Sequence[Row]) -> Iterator[Point]:
    """Yield the rows of the hardware trace as points by names that MLflow's UI shows as system metrics."""
    samples: dict[int, int] = {}
    for row in trace:
        rank = int(row["rank"])
        step = samples[rank] = samples.get(rank, -1) + 1
        kind = "gpu" if str(row["device"]).startswith("gpu") else "cpu"
        for column, (name, factor) in SYSTEM_METRICS.items():
            if row[column] is not None:
                yield f"system/rank_{rank}_{kind}_{name}", row[column] * factor, step, row["time"]

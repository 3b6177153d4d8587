"""Directories of runs, as ranks and parent leave them."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from mlflow import MlflowClient

from src.config import Config
from src.run.tables import EPOCH_FIELDS, STEP_FIELDS, TRACE_FIELDS
from src.tracking.live_tracker import ParentTracker
from tests.support import config

STARTED = 1_000_000.0
METRICS = {
    **{"status": "ok", "startup_seconds": 10.0, "samples_per_second": 800.0, "accuracy": 0.75, "loss": 0.5},
    **{"workers": 2, "batch": 64, "seed": 0, "epochs": 1, "microbatches": 1, "speedless": None},
    **{"train_seconds": 2.0, "total_seconds": 20.0, "cpu_wait_fraction": 0.0, "steal_fraction": 0.0},
    **{"shared_device": False},
}


def chosen(*words: str) -> Config:
    return config("strategy=ddp", "workers=2", "tracking.backend=sqlite", "out=run", *words)


def table(path: Path, fields: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([fields, *rows])


def step(number: int, loss: float | None, seconds: float = 0.5, samples: int = 32) -> list[Any]:
    """A row of a rank's steps.csv."""
    return [1, number, seconds, samples, "" if loss is None else loss, ""]


def evaluation(step: int, accuracy: float) -> list[Any]:
    """A row of epochs.csv."""
    metrics = [json.dumps({"accuracy": value}) for value in (accuracy, 0.7)]
    return [1.0, 2.0, 0.6, 0.7, 0.5, accuracy, 3.0, step, accuracy, 0.7, *metrics]


def begun(folder: Path, *words: str) -> Config:
    """A run's directory before its ranks start."""
    run = chosen(*words)
    (folder / "logs").mkdir(parents=True)
    (folder / "ranks").mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(run)))
    return run


def rank(folder: Path, number: int, *steps: list[Any]) -> None:
    """The steps of a rank so far."""
    table(folder / "ranks" / str(number) / "steps.csv", STEP_FIELDS, steps)


def ended(folder: Path, losses: Sequence[float | None], **metrics: Any) -> dict[str, Any]:
    """The result files of a run, whose ranks' records are gone; returns its metrics."""
    shutil.rmtree(folder / "ranks")
    rows = [[number, *step(i, loss)] for number in (0, 1) for i, loss in enumerate(losses, 1)]
    table(folder / "steps.csv", ("rank", *STEP_FIELDS), rows)
    table(folder / "epochs.csv", EPOCH_FIELDS, [evaluation(len(losses), 0.75)])
    sample = [0.5, 3e6, "", 1e6, 2e6, 0.25, 5e6, 7e6, "", ""]
    table(
        folder / "trace.csv",
        TRACE_FIELDS,
        [[STARTED + i, number, f"cpu{number}", *sample] for i in (11, 12) for number in (0, 1)],
    )
    (folder / "environment.json").write_text(json.dumps({"started": STARTED}))
    (folder / "logs" / "rank-1.log").write_text("said")
    found = METRICS | metrics
    (folder / "metrics.json").write_text(json.dumps(found))
    return found


def opened(folder: Path, *words: str, sweep: bool = False) -> ParentTracker:
    """The tracker of a run that has begun in `folder`."""
    tracker = ParentTracker(begun(folder, *words))
    tracker.start(folder, started=STARTED, sweep=sweep)
    return tracker


def history(client: MlflowClient, run_id: str | None, name: str) -> list[tuple[int, float]]:
    """The (step, value) of a curve's points, in the order of steps."""
    return sorted((point.step, point.value) for point in client.get_metric_history(run_id, name))

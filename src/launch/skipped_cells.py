"""Record a study's cell that was not run, so that the others and the tables are still made."""

from __future__ import annotations

import json
import shutil

from src.config import Config
from src.measure.metrics import RunRecords, metrics_of
from src.run import files
from src.run.directory import RunDirectory
from src.run.status import Status
from src.run.tables import write_text


def record(config: Config, status: Status, reason: str) -> None:
    """Write a run's directory whose metrics.json has the `status`, no figure, and the reason as `error`."""
    directory = RunDirectory.claim(config)
    run = RunRecords(config, steps={}, records={}, epochs=[])
    metrics = metrics_of(run, status=status, total_seconds=0.0, restarts=0, run_id=None)
    write_text(directory.work / files.METRICS, json.dumps({**metrics, "error": reason}, indent=1))
    shutil.rmtree(directory.work / files.RANKS)
    directory.commit()

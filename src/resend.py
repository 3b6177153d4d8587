"""Runs that the tracking server missed: remembered by path, sent whole when it is back.

Training goes on without the server; a run's files hold everything that MLflow would have been told.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from src import config as configuration
from src.tracking import ParentTracker, RankTracker

WAITING = Path("runs/.unsent")


def remember(folder: Path, uri: str) -> None:
    """Puts a run directory on the list of those to send to the server at `uri`."""
    WAITING.parent.mkdir(parents=True, exist_ok=True)
    _keep([*_waiting(), (uri, str(folder.absolute()))])


def _waiting() -> list[tuple[str, str]]:
    lines = WAITING.read_text().splitlines() if WAITING.exists() else []
    return [(uri, path) for uri, _, path in (line.partition("\t") for line in lines)]


def _keep(waiting: list[tuple[str, str]]) -> None:
    if waiting:
        WAITING.write_text("".join(f"{uri}\t{path}\n" for uri, path in dict.fromkeys(waiting)))
    else:
        WAITING.unlink(missing_ok=True)


def send_waiting(uri: str) -> int:
    """Sends what waits for the server at `uri` and still exists; returns how many runs were sent."""
    sent, left = 0, []
    for wanted, path in _waiting():
        folder = Path(path)
        if not (folder / "metrics.json").exists():
            continue
        if wanted == uri and _send(folder):
            sent += 1
        else:
            left.append((wanted, path))
    _keep(left)
    return sent


def _send(folder: Path) -> bool:
    config = configuration.load(folder / "config.yaml")
    metrics = json.loads((folder / "metrics.json").read_text())
    tracker = ParentTracker(config)
    # A run that was opened before the server went away is completed, not made twice.
    tracker.open(sweep=False, known=metrics["mlflow_run_id"])
    if tracker.run_id is None or tracker.uri is None:
        return False
    rank = RankTracker(tracker.uri, tracker.run_id)
    steps = [row for row in _rows(folder / "steps.csv") if row["rank"] == 0]
    rank.steps(steps)
    per_epoch = len(steps) / metrics["epochs"] if metrics["epochs"] else 0
    for row in _rows(folder / "epochs.csv"):
        rank.epoch(row, round(row["epoch"] * per_epoch))
    status = "FAILED" if metrics["status"] == "failed" else "FINISHED"
    return tracker.close(status, folder, metrics, _rows(folder / "trace.csv"))


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    try:
        return float(text) if text else None
    except ValueError:
        return text

"""Send runs that the tracking server has missed, once the server is back.

Training goes on without the server. A list on disk has the directories of the runs that the server missed;
their files hold everything that MLflow needs.
"""

from __future__ import annotations

import json
from pathlib import Path

from src.config import load
from src.run import files
from src.run.tables import read_table
from src.tracking.parent import ParentTracker
from src.tracking.rank import RankTracker

UNSENT = Path("runs/.unsent")


def remember(folder: Path, uri: str) -> None:
    """Add the run directory `folder` to the list of those to send to the server at `uri`."""
    UNSENT.parent.mkdir(parents=True, exist_ok=True)
    _write([*_read(), (uri, str(folder.absolute()))])


def _read() -> list[tuple[str, str]]:
    """Read the list: (server, run directory)."""
    lines = UNSENT.read_text().splitlines() if UNSENT.exists() else []
    return [(uri, path) for uri, _, path in (line.partition("\t") for line in lines)]


def _write(unsent: list[tuple[str, str]]) -> None:
    """Write the list of (server, run directory), each once; remove the file of an empty list."""
    if unsent:
        UNSENT.write_text("".join(f"{uri}\t{path}\n" for uri, path in dict.fromkeys(unsent)))
    else:
        UNSENT.unlink(missing_ok=True)


def send_unsent(uri: str) -> int:
    """Send the runs on the list for the server at `uri` that still exist; return how many were sent."""
    sent, unsent = 0, []
    for server, path in _read():
        folder = Path(path)
        if not (folder / files.METRICS).exists():
            continue
        if server == uri and _send(folder):
            sent += 1
        else:
            unsent.append((server, path))
    _write(unsent)
    return sent


def _send(folder: Path) -> bool:
    """Send all of a run by its files; return whether the server now has the run."""
    metrics = json.loads((folder / files.METRICS).read_text())
    tracker = ParentTracker(load(folder / files.CONFIG))
    if metrics["mlflow_run_id"] is None:
        tracker.open(sweep=False)
    else:
        # A run that was opened before the server went away is completed, not made twice.
        tracker.reopen(metrics["mlflow_run_id"])
    if tracker.run_id is None or tracker.uri is None:
        return False
    rank = RankTracker(tracker.uri, tracker.run_id)
    steps = [row for row in read_table(folder / files.STEPS) if row["rank"] == 0]
    rank.on_steps(steps)
    per_epoch = len(steps) / metrics["epochs"] if metrics["epochs"] else 0
    for row in read_table(folder / files.EPOCHS):
        rank.on_evaluation(row, round(row["epoch"] * per_epoch))
    status = "FAILED" if metrics["status"] == "failed" else "FINISHED"
    tracker.log_results(folder, metrics, read_table(folder / files.TRACE))
    return tracker.close(status, folder)

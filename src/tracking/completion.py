"""Send runs that the store has missed: those whose server was away, and those whose parent was killed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from src.config import load
from src.config.tracking_address import database_path
from src.run import files
from src.run.directory import PARTIAL
from src.tracking import run_page
from src.tracking.mlflow_run import MLflowRun, RunDeleted
from src.tracking.points import recorded_points
from src.tracking.store import Warned, same_store, unsent_folder
from src.tracking.unsent import NoteFile, RunNote, ownerless_notes, read_note

# MLflow's codes of refusals that are about one run.
OF_A_RUN = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")


def send_unsent(uri: str) -> int:
    """Complete the runs that the store at `uri` misses; return how many trainings it now has whole.

    A run whose files are gone is ended as it is, and one that was deleted in the store is given up. What
    the store doesn't take stays for another time; after an error that would meet all, so does the rest.
    """
    sent = 0
    warned = Warned("earlier runs are sent later, or given up by `python -m src.ui --drop`")
    for file, note in ownerless_notes(uri):
        with warned, contextlib.closing(file):
            try:
                sent += complete(note)
            except RunDeleted:
                print(
                    f"note: the MLflow run {note.name} was deleted in the store, and isn't sent again",
                    flush=True,
                )
            file.remove()
        if warned.error is not None and getattr(warned.error, "error_code", None) not in OF_A_RUN:
            break
    return sent


def drop_unsent(uri: str) -> list[RunNote | None]:
    """Give up the runs that the store at `uri` misses; return their notes, `None` for unreadable ones."""
    dropped: list[RunNote | None] = []
    for path in sorted(unsent_folder(uri).glob("*.json")):
        file, note = NoteFile.take(path), read_note(path)
        if file is not None:
            if note is None or same_store(note.uri, uri):
                dropped.append(note)
                file.remove()
            file.close()
    return dropped


def complete(note: RunNote) -> bool:
    """Bring what the store has of a run to its end; return whether that was a training with files.

    A run whose parent was killed is KILLED, with what its ranks recorded. One that the store never had, and
    whose files are gone, stays unknown to it.
    """
    run = MLflowRun(note, new=False)
    folder = _folder_of(note)
    if folder is not None:
        config = load(folder / files.CONFIG)
        metrics = folder / files.METRICS
        if note.status is None:
            figures = json.loads(metrics.read_text()) if metrics.exists() else {}
            note.final_tags = {run_page.DESCRIPTION: run_page.description(config, figures)}
            note.ended = max(path.stat().st_mtime for path in folder.rglob("*"))
            note.status = "KILLED"
        send_results(run, note, folder, synchronous=config.synchronous)
        run.send_file(folder / files.ENVIRONMENT)
        run.close()
        return True
    path = database_path(note.uri)
    if path is None or path.exists():
        run.open(create=False)
        if run.run_id is not None:
            note.status, note.ended = note.status or "KILLED", note.ended or note.started
            run.close()
    return False


def _folder_of(note: RunNote) -> Path | None:
    """Return the directory with the records of a run, `None` if they are gone or another run's."""
    if note.folder is None:
        return None
    written = Path(note.folder)
    for folder in (written, written.with_name(written.name.removesuffix(PARTIAL))):
        try:
            if (folder / files.METRICS).exists():
                started = json.loads((folder / files.ENVIRONMENT).read_text())["started"]
                if started == note.started:
                    return folder
            elif (folder / files.RANKS / files.TRACKED).read_text() == note.key:
                return folder
        except (OSError, ValueError, KeyError):
            continue
    return None


def send_results(run: MLflowRun, note: RunNote, folder: Path, *, synchronous: bool) -> None:
    """Send the points that the store doesn't have, and all result files in `folder` but `environment.json`.

    The note has the run's end.
    """
    assert note.ended is not None
    run.send(recorded_points(folder, started=note.started, ended=note.ended, synchronous=synchronous))
    for name in files.RESULTS:
        if name != files.ENVIRONMENT:
            run.send_file(folder / name)
    for log in sorted((folder / files.LOGS).glob("*")):
        run.send_file(log, files.LOGS)
    for trace in sorted(path for path in (folder / files.PROFILE).rglob("*") if path.is_file()):
        run.send_file(trace, str(trace.parent.relative_to(folder)))

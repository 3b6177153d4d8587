"""Give the runs of a sweep one parent run in MLflow, which says what was swept."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from src.tracking import run_page
from src.tracking.completion import complete
from src.tracking.store import Warned
from src.tracking.unsent import NoteFile, RunNote, note_of

# Variable with the key of the sweep's run; processes of a launcher plugin of Hydra inherit it.
SWEEP = "SCALEGUIDE_SWEEP"
NAME_LIMIT = 250
_sweeps: list[tuple[RunNote, NoteFile]] = []


def sweep_key() -> str | None:
    """Return the key of the sweep's run, `None` if no sweep was begun."""
    return os.environ.get(SWEEP)


def sweep_command(note: RunNote) -> dict[str, str]:
    """Return the tag with the command of the sweep to which a run belongs; empty without a sweep.

    A process of a launcher plugin of Hydra doesn't know it from its own command line.
    """
    sweep = note.sweep and note_of(note.uri, note.sweep)
    return {run_page.COMMAND: sweep.tags[run_page.COMMAND]} if sweep else {}


def begin_sweep(
    uri: str | None, swept: Sequence[str], cells: int, *, started: float, finished: int = 0
) -> None:
    """Prepare the parent run of a sweep of so many cells; the first of its runs creates it.

    `swept` are the overrides with several values. The command was given at `started` seconds since 1970. So
    many cells were `finished` before. For the `uri` of no store nothing is done.
    """
    if uri is None:
        return
    words = " ".join(swept)
    description = f"Sweep over {words}: {cells} runs." if words else f"Sweep of {cells} run(s)."
    if finished:
        description += f" {finished} of them were finished before, and belong to an earlier sweep."
    tags = {"sweep": "parent", "swept": words, "mlflow.note.content": description}
    name = words[:NAME_LIMIT] or "sweep"
    note = RunNote(uri=uri, name=name, started=started, tags=run_page.source_tags() | tags)
    # Without the note, as on a full disk, the runs stand alone.
    with contextlib.suppress(OSError):
        _sweeps.append((note, NoteFile.create(note)))
        os.environ[SWEEP] = note.key


def close_sweep(status: str) -> None:
    """End the sweep's parent run, if a sweep was begun, with MLflow's `status`."""
    os.environ.pop(SWEEP, None)
    while _sweeps:
        note, file = _sweeps.pop()
        note.status, note.ended = status, time.time()
        with Warned("the sweep's parent run is ended later") as warned:
            file.write(note)
            complete(note)
        if warned.error is not None:
            file.close()
        else:
            file.remove()

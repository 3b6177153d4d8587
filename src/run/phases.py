"""Tell the parent what rank 0 does before its first step and after its last, for the person who waits."""

from __future__ import annotations

import contextlib
from pathlib import Path

from src.run import files
from src.run.tables import write_text

STARTING = "starting the ranks"
MODEL = "preparing the data and the model"
FIRST_STEP = "taking the first step"
TRAINING = "training"
# What the parent itself sees by the steps.
FINISHING = "evaluating, and measuring what needs the trained model"


def importing(framework: str) -> str:
    """Return the phase in which a rank imports its framework."""
    return f"importing {framework}"


def announce(folder: Path, phase: str) -> None:
    """Write what a rank with the records in `folder` does now; that this fails must not end the run."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / files.PHASE, phase)


def current(out: Path) -> str:
    """Return what rank 0 of the run in `out` did last."""
    try:
        return (files.rank_folder(out, 0) / files.PHASE).read_text() or STARTING
    except OSError:
        return STARTING

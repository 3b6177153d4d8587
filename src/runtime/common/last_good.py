"""Keep a run's last good checkpoints, whatever the training does after them.

A state is good if its tensors are finite and so is a loss that was computed with it. The loss of a step is
that of the state before the step's update: whether a state is good shows in the step after it, or in an
evaluation. So there is one more checkpoint than is to be kept until the newest one is known to be good, which
it is when the next one is written. The newest one has the run's name for it, the older ones have their number
of steps in theirs (`src.run.files.older_checkpoint`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from src.run import files
from src.run.tables import written_whole

# After a failed write, a disk without room for as much is full.
ROOM_BYTES = 1024 * 1024


@contextlib.contextmanager
def newer(path: Path, *, present: int | None, keep: int = 1) -> Iterator[Path]:
    """Yield a temporary file to write, which becomes the checkpoint `path` when the block ends well.

    Args:
        path: the newest checkpoint, known to be good by now; it is kept among the older ones.
        present: how many steps it has done, `None` if there is none.
        keep: how many checkpoints to keep, besides the one that is written.

    Raises:
        OSError: on a full disk, also where a library has another error for that.
    """
    # Before the block: no more than `keep` and this one need room on the disk.
    _remove(files.older_checkpoints(path)[keep - 1 :])
    with written_whole(path) as temporary:
        try:
            yield temporary
        except RuntimeError:
            # torch's writer doesn't say why it failed; a few more bytes do.
            with temporary.open("ab") as file:
                os.posix_fallocate(file.fileno(), file.tell(), ROOM_BYTES)
            raise
        with temporary.open("rb") as file:
            # Whatever ends the machine, the name stands for a whole file.
            os.fsync(file.fileno())
        if present is not None:
            older = files.older_checkpoint(path, present)
            # There is one if the process was killed here.
            older.unlink(missing_ok=True)
            try:
                os.link(path, older)
            except OSError:
                # Some file systems have no links.
                shutil.copyfile(path, older)


def settle(path: Path, *, good: bool, keep: int = 1) -> None:
    """Leave the last good checkpoints, the newest of them at `path`, at the end of a training.

    Args:
        path: the newest checkpoint.
        good: whether that is good; if not, the one before it takes its place, and without one none is left.
        keep: how many to leave.
    """
    older = files.older_checkpoints(path)
    if good:
        _remove(older[keep - 1 :])
    elif older:
        os.replace(older[0], path)
    else:
        path.unlink(missing_ok=True)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)

"""Keep a run's last good checkpoint, whatever the training does after it.

A state is good if its tensors are finite and so is a loss that was computed with it. The loss of a step is
that of the state before the step's update: whether a state is good shows in the step after it, or in an
evaluation. So the checkpoint before the newest one is kept, under another name, until the newest one is known
to be good, which it is when the next one is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from src.run.tables import written_whole

# After a failed write, a disk without room for as much is full.
ROOM_BYTES = 1024 * 1024


@contextlib.contextmanager
def newer(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write, which becomes the checkpoint `path` when the block ends well.

    The present checkpoint, known to be good by now, is kept until `settle`.

    Raises:
        OSError: on a full disk, also where a library has another error for that.
    """
    previous = _previous(path)
    # Before the block: no more than two checkpoints need room on the disk.
    previous.unlink(missing_ok=True)
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
        if path.exists():
            try:
                os.link(path, previous)
            except OSError:
                # Some file systems have no links.
                shutil.copyfile(path, previous)


def settle(path: Path, *, good: bool) -> None:
    """Leave the last good checkpoint at `path`, and nothing beside it, at the end of a training.

    Args:
        path: the newest checkpoint.
        good: whether that is good; if not, the one before it takes its place, and without one none is left.
    """
    previous = _previous(path)
    if good:
        previous.unlink(missing_ok=True)
    elif previous.exists():
        os.replace(previous, path)
    else:
        path.unlink(missing_ok=True)


def _previous(path: Path) -> Path:
    return path.with_name(f".{path.name}.previous")

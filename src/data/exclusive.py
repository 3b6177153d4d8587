"""Have one process at a time make a folder, while the others wait for it.

The lock is flock(2) on a file beside the folder. The kernel frees it with the process that holds it, which
otherwise removes the file.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from src.machine import locks


@contextmanager
def alone(folder: Path, purpose: str) -> Iterator[bool]:
    """Hold the lock of `folder`, and yield whether another process had it first, whose end was waited for.

    A line says for whom, and that it is for the `purpose`.
    """
    waited = False
    while (file := _lock(folder, wait=False)) is None:
        waited = True
        # It may be on another host.
        others = " and ".join(locks.holders(_path(folder))) or "another process"
        print(f"{purpose}: waiting for {others}", file=sys.stderr, flush=True)
        if (file := _lock(folder, wait=True)) is not None:
            break
    try:
        yield waited
    finally:
        _unlock(folder, file)


@contextmanager
def alone_if_free(folder: Path) -> Iterator[bool]:
    """Hold the lock of `folder` if no other process has it, and yield whether that is so."""
    file = _lock(folder, wait=False)
    try:
        yield file is not None
    finally:
        if file is not None:
            _unlock(folder, file)


def _lock(folder: Path, *, wait: bool) -> int | None:
    """Lock the file of `folder` and return it open; `None` where another process has, or had, it."""
    path = _path(folder)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if locks.is_at(file, path):
            return file
    except BlockingIOError:
        pass
    except OSError as error:
        os.close(file)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        os.close(file)
        raise
    # It is another's, or its holder has removed it as it was waited for.
    os.close(file)
    return None


def _unlock(folder: Path, file: int) -> None:
    # Before it is unlocked: nobody then locks a file that is about to be removed.
    _path(folder).unlink(missing_ok=True)
    locks.unlock(file)


def _path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")

"""Lock files by flock(2), so that one process at a time does something while the others wait for it.

A lock's file is made for it, and removed by the process that holds it. The kernel frees the lock with that
process, however it ends; children don't inherit it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND_LENGTH = 100
# How often the folder of a lock is made that others remove at that moment.
TRIES = 100


@contextmanager
def alone(folder: Path, purpose: str) -> Iterator[bool]:
    """Hold the lock of `folder`, and yield whether another process had it first, whose end was waited for.

    A line says for whom, and that it is for the `purpose`. The lock's file is beside the folder.
    """
    path = _path(folder)
    file = lock(path, wait=False)
    waited = file is None
    if waited:
        # It may be on another host.
        others = " and ".join(holders(path)) or "another process"
        print(f"{purpose}: waiting for {others}", file=sys.stderr, flush=True)
        file = lock(path, wait=True)
    assert file is not None, "it was waited for"
    try:
        yield waited
    finally:
        release(path, file)


@contextmanager
def alone_if_free(folder: Path) -> Iterator[bool]:
    """Hold the lock of `folder` if no other process has it, and yield whether that is so."""
    file = lock(_path(folder), wait=False)
    try:
        yield file is not None
    finally:
        if file is not None:
            release(_path(folder), file)


def _path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def lock(path: Path, *, wait: bool, mode: int = 0o666) -> int | None:
    """Make the file at `path` and its folder, lock it, and return it open.

    Args:
        path: the file.
        wait: whether to wait until no other process has the lock; `None` is returned if not, and one has it.
        mode: the permissions of a new file, less those of the umask.

    Raises:
        OSError: where there can't be such a file, or no lock.
    """
    failures = 0
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
        except (FileNotFoundError, FileExistsError):
            # Another process may have removed the folder, which it had made for its own lock.
            failures += 1
            if failures == TRIES:
                raise
            continue
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                return None
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error
            # Else it was released, and its file removed, meanwhile.
            if is_at(file, path):
                closing.pop_all()
                return file


def release(path: Path, file: int) -> None:
    """Free a lock and remove its file."""
    # Before it is unlocked: nobody then locks a file that is about to be removed.
    path.unlink(missing_ok=True)
    unlock(file)


def unlock(file: int) -> None:
    """Free a lock by flock(2) and close its file.

    A process that has just been forked holds a copy of the file until it executes its program, and with it a
    lock that is merely closed here.
    """
    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def is_at(file: int, path: Path) -> bool:
    """Return whether an open file is still the one at `path`, and neither removed nor replaced."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def holders(path: Path) -> list[str]:
    """Return which other processes have locked a file: `pid 4711 (python -m src.train ...)`."""
    found = []
    # There is no file for a core that nobody has taken yet, and some systems have no /proc/locks.
    with contextlib.suppress(OSError):
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            # `1: FLOCK ADVISORY WRITE 4711 fe:00:1234 0 EOF`; one that waits has `->` after its number.
            words = line.split()
            own = words[4] == str(os.getpid())
            if words[1] == "FLOCK" and not own and words[5].rpartition(":")[2] == str(inode):
                found.append(f"pid {words[4]} ({_command(words[4])})")
    return found


def _command(pid: str) -> str:
    """Return the command line of a process, without the folder of its program."""
    try:
        program, *words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except (OSError, ValueError):
        return "its command is unknown"
    # An argument may have several lines, and what it is named in must have one.
    return " ".join(" ".join([Path(program).name, *words]).split())[:COMMAND_LENGTH]

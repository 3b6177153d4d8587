"""Tell why no folder can be made or written at a path, before anything depends on it; exchange folders."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from pathlib import Path

# Here the kernel shows its objects as files, and keeps nothing that is written; but this part is a disk.
PSEUDO, EXCEPTIONS = ("/proc", "/sys", "/dev"), ("/dev/shm",)
# Characters that names and paths below a folder may need besides the folder's own.
SPARE_NAME, SPARE_PATH = 16, 160
# Bytes of the path of a Unix socket at most, its end included (sys/un.h), and those that names below a folder
# for temporary ones may need.
SOCKET_PATH, SPARE_SOCKET = 108, 60
FULL = (errno.ENOSPC, errno.EDQUOT)
# fcntl.h, linux/fs.h
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def obstacle(path: Path) -> str | None:
    """Return why no folder can be made and written at `path`, in words that follow a colon, or `None`.

    A folder that is there already must be writable. Nothing is left behind.

    Raises:
        OSError: where the disk is full.
    """
    try:
        return _obstacle(path)
    except OSError as error:
        if error.errno in FULL:
            raise
        return f"can't be written: {error.strerror or error}"


def _obstacle(path: Path) -> str | None:
    """Return what `obstacle` does, but raise its errors."""
    if "\0" in str(path):
        return "can't be written: has a null character"
    path = Path(os.path.abspath(path))
    there = path
    while not os.path.lexists(there) and there != there.parent:
        if len(os.fsencode(there.name)) > os.pathconf("/", "PC_NAME_MAX") - SPARE_NAME:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        there = there.parent
    if not there.exists():
        return f"{'' if there == path else f'{there} '}is a link to {os.readlink(there)}, which isn't there"
    if not there.is_dir():
        return f"{'' if there == path else f'{there} '}is a file; choose a directory"
    if len(os.fsencode(path)) > os.pathconf(there, "PC_PATH_MAX") - SPARE_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    real = there.resolve()
    shown = next((folder for folder in PSEUDO if real.is_relative_to(folder)), None)
    if shown and not any(real.is_relative_to(folder) for folder in EXCEPTIONS):
        return f"can't be written: {shown} holds the kernel's objects and no files"
    # The one way to know: access(2) tells root too much, and nothing of attributes, quotas or servers.
    with tempfile.TemporaryDirectory(prefix=".tried-", dir=there):
        return None


def files_below(folder: Path) -> list[Path]:
    """Return all files below a folder, also behind links, but for hidden ones, sorted by path."""
    found: list[Path] = []
    entered = set()
    for path, inside, files in os.walk(folder, followlinks=True):
        # A link may lead to a folder above it.
        if (real := os.path.realpath(path)) in entered:
            inside.clear()
            continue
        entered.add(real)
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        found += [Path(path, name) for name in files if not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def for_sockets() -> str:
    """Return where folders with Unix sockets are made: in TMPDIR, or `/tmp` where its path is too long."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) < SOCKET_PATH - SPARE_SOCKET else "/tmp"


def swap_directories(first: Path, second: Path) -> bool:
    """Have two paths swap what they name, in one step for everybody; return whether that was possible.

    Some file systems (NFS) can't, nor can a C library without renameat2(2).
    """
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    done: int = renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    return done == 0

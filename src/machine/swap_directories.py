"""Exchange two directories in one step, which Python's `os` doesn't offer."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

# fcntl.h, linux/fs.h
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def swap_directories(first: Path, second: Path) -> bool:
    """Have two paths swap what they name, at once for everybody; return whether that was possible.

    Some file systems (NFS) can't, nor can a C library without renameat2(2).
    """
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    done: int = renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    return done == 0

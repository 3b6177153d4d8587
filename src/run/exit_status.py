"""Number the ways in which a process of a run ends, which its exit status tells the parent.

Any code in a process, a user's model or a library, may end it with any status. So a process also announces
its status in a file (`src.run.files.end_path`) at the very end, and the parent takes a status that wasn't
announced for a crash.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from src.machine.folders import FULL

OK = 0
CRASH = 1
OUT_OF_MEMORY = 77
DISK_FULL = 78
# A user's mistake that only the built model shows, such as a cut that it doesn't allow.
MISTAKE = 79
# Added by the parent to a status that the process didn't announce.
UNANNOUNCED = 256
# Of a process whose host was lost, as far as the parent knows.
HOST_LOST = 1000
# Statuses that mean something, and must have been announced.
_ANNOUNCED = (OK, OUT_OF_MEMORY, DISK_FULL, MISTAKE)
# Statuses of processes that would end in the same way if they were started again.
FINAL = (OUT_OF_MEMORY, DISK_FULL, MISTAKE)

# Names of the out-of-memory errors of torch, Python and TensorFlow.
OUT_OF_MEMORY_ERRORS = ("OutOfMemoryError", "MemoryError", "ResourceExhaustedError")


def of_error(error: BaseException) -> int:
    """Return the exit status of a rank that ends by `error`.

    Out-of-memory errors are recognised by name, so that no framework is imported. A framework's error that
    has the text of a full disk's is one, whatever its class (TensorFlow's is `ResourceExhaustedError`).
    """
    if (isinstance(error, OSError) and error.errno in FULL) or os.strerror(errno.ENOSPC) in str(error):
        return DISK_FULL
    names = [kind.__name__ for kind in type(error).__mro__]
    if any(name in OUT_OF_MEMORY_ERRORS for name in names) or "can't allocate memory" in str(error):
        return OUT_OF_MEMORY
    return CRASH


def reserve(path: Path) -> None:
    """Make the file in which `announce` will write, which then needs no more room on the disk."""
    with contextlib.suppress(OSError):
        path.write_text("none")


def announce(path: Path, code: int) -> None:
    """Announce the exit status of this process, which must end next."""
    with contextlib.suppress(OSError), path.open("r+") as file:
        file.write(f"{code:4}")


def confirmed(path: Path, code: int) -> int:
    """Return the exit status of a process that has ended, with `UNANNOUNCED` added if it is to be doubted.

    Args:
        path: the file in which the process has announced its status.
        code: the status with which it has ended (negative: the number of a signal).
    """
    if code not in _ANNOUNCED:
        return code
    try:
        announced = path.read_text().strip()
    except OSError:
        announced = ""
    return code if announced == str(code) else code + UNANNOUNCED

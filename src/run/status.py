"""Enumerate the ways in which a run ends, and the exit statuses by which its processes and commands say so.

Any code in a process, a user's model or a library, may end it with any status. So a process also announces
its status in a file (`src.run.files.end_path`) at the very end, and the parent takes a status that wasn't
announced for a crash.
"""

from __future__ import annotations

import contextlib
import errno
import os
from enum import StrEnum
from pathlib import Path

from src.config import ConfigError
from src.config.mistakes import CommandError
from src.machine.folders import FULL


class Status(StrEnum):
    """How a run has ended, the worst last; the word stands in its metrics.json.

    Attributes:
        process: the exit status with which a process of the run says so; 1 where it has none of its own.
        command: the exit status of the command of this one run.
    """

    process: int
    command: int

    def __new__(cls, word: str, process: int = 1, command: int = 0) -> Status:
        """Make a member whose value is the `word`."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.process, member.command = process, command
        return member

    OK = "ok", 0, 0
    TIME_LIMIT = "time_limit", 0, 0
    DIVERGED = "diverged", 0, 0
    OUT_OF_MEMORY = "out_of_memory", 77, 0
    # A study asks for what this machine lacks.
    SKIPPED = "skipped", 1, 0
    FAILED = "failed", CommandError.exit_status, CommandError.exit_status
    # The disk of a process is full; its run has failed.
    DISK_FULL = "disk_full", 78, CommandError.exit_status
    # The user has made a mistake that only the built model shows, such as a cut that it doesn't allow.
    MISTAKE = "mistake", 79, ConfigError.exit_status
    # A study has no directory of the run.
    MISSING = "missing", 1, CommandError.exit_status
    # The user has ended the command.
    INTERRUPTED = "interrupted", 1, 130


# Runs that were measured; those of another status have no figures to compare.
MEASURED = (Status.OK, Status.TIME_LIMIT, Status.DIVERGED)
# The parent adds this to an exit status that the process didn't announce.
UNANNOUNCED = 256
# The status of a process whose host was lost, as far as the parent knows.
HOST_LOST = 1000
# Exit statuses of processes that would end in the same way if they were started again.
FINAL = (Status.OUT_OF_MEMORY.process, Status.DISK_FULL.process, Status.MISTAKE.process)
# Names of the out-of-memory errors of torch, Python and TensorFlow.
OUT_OF_MEMORY_ERRORS = ("OutOfMemoryError", "MemoryError", "ResourceExhaustedError")


def of_error(error: BaseException) -> Status:
    """Return how a rank ends by `error`.

    Out-of-memory errors are recognised by name, so that no framework is imported. A framework's error that
    has the text of a full disk's is one, whatever its class (TensorFlow's is `ResourceExhaustedError`).
    """
    if (isinstance(error, OSError) and error.errno in FULL) or os.strerror(errno.ENOSPC) in str(error):
        return Status.DISK_FULL
    names = [kind.__name__ for kind in type(error).__mro__]
    if any(name in OUT_OF_MEMORY_ERRORS for name in names) or "can't allocate memory" in str(error):
        return Status.OUT_OF_MEMORY
    return Status.FAILED


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
    if code not in (Status.OK.process, *FINAL):
        return code
    try:
        announced = path.read_text().strip()
    except OSError:
        announced = ""
    return code if announced == str(code) else code + UNANNOUNCED

"""Start a command as a child of the parent, and define the interface of all started processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import AnyStr, Protocol

# glibc returns freed blocks of this size to the kernel and faults them in again at every step;
# keeping them is worth a third of a small CNN's step (see docs/performance.md).
KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**26),
}


class Process(Protocol):
    """The interface of a started process that leads a process group, on this host or another."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status of the process (negative: the number of a signal), `None` while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit status.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children, whether or not the process has ended itself."""


class ChildProcess(subprocess.Popen[AnyStr]):
    """A child of this process that leads a process group (a `Process`)."""

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        signal_group(self.pid, number)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group that the process `pid` of this host leads, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


# A function that starts a command with environment variables besides the parent's, and appends the output to
# a file.
Spawn = Callable[[list[str], Mapping[str, str], Path], Process]


def spawn_child(
    command: list[str],
    environment: Mapping[str, str],
    log: Path,
    inherited: Sequence[int] = (),
    *,
    inherits: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> ChildProcess[bytes]:
    """Start `command` as a child in a session of its own, with its output appended to `log` (a `Spawn`).

    The child inherits the file descriptors `inherited` besides its output, and the variables `inherits`. It
    starts in `folder`, by default in this process's.
    """
    with log.open("ab") as output:
        return ChildProcess(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**inherits, **KEEP_FREED_MEMORY, **environment},
            start_new_session=True,
            pass_fds=inherited,
            cwd=folder,
        )

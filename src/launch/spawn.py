"""Start a command as a child of the parent, and define the interface of all started processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import AnyStr, Protocol

from src.launch import surroundings

# glibc returns freed blocks of this size to the kernel and faults them in again at every step;
# keeping them is worth a third of a small CNN's step (see docs/performance.md).
KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**26),
}
# Silences messages of TensorFlow's libraries, except for errors.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


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


class AwaitedProcess:
    """A `Process`, but for its signals, that is no child of this one: somebody else tells of its end."""

    def __init__(self, name: str) -> None:
        """Wait for the end of the process that messages call `name`."""
        self._name = name
        self._code = 0
        self._ended = threading.Event()

    def poll(self) -> int | None:
        """Return the exit status of the process, `None` while it runs."""
        return self._code if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit status.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self._name, timeout or 0.0)
        return self._code

    def end(self, code: int) -> None:
        """Take the process for ended, with this exit status."""
        self._code = code
        self._ended.set()


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
    inherits: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ChildProcess[bytes]:
    """Start `command` as a child in a session of its own, with its output appended to `log` (a `Spawn`).

    The child inherits the file descriptors `inherited` besides its output, and the variables `inherits`, by
    default those of `surroundings.inherited`. It starts in `folder`, by default in this process's.
    """
    with log.open("ab") as output:
        return ChildProcess(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **(surroundings.inherited() if inherits is None else inherits),
                **KEEP_FREED_MEMORY,
                **environment,
            },
            start_new_session=True,
            pass_fds=inherited,
            cwd=folder,
        )

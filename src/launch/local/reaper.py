"""Remove what a command would leave behind if it were killed, by a small process that outlives it.

The reaper reads lines from a pipe whose other end the command has, and `mpiexec` with all its processes,
which inherit it. When the last of them has ended, however that happens, the pipe ends, and the reaper removes
what the lines name:

    folder /.../scaleguide-x           a folder with a socket
    cgroups /sys/.../scaleguide-4711-  cgroups whose paths begin so
    segments 1700000000.0              MPICH's shared memory that was made since then and nobody uses

It imports nothing of the project, so that it starts at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import time
from glob import escape, glob
from pathlib import Path

# Limit for the processes in a cgroup to end; no event of version 1 tells of that.
LIMIT_SECONDS = 10.0
POLL_SECONDS = 0.02
# The kernel gives files the time of its last tick, which is up to 1/100 s before that of the clock.
TICK_SECONDS = 0.01
DETACHED = "--detached"
_started: list[subprocess.Popen[bytes]] = []


def remove_at_end(kind: str, name: str, *, detached: bool = False) -> int:
    """Have the reaper remove something once this process has ended; start it, if it doesn't run yet.

    Call this before the thing is made.

    Args:
        kind: `folder`, `cgroups` or `segments`.
        name: its path, the beginning of its path, or seconds since 1970.
        detached: whether a reaper that is started now is to be nobody's child: an engine that ends this
            process may end its children, too. It isn't waited for.

    Returns:
        The file descriptor which processes must inherit that are to end before the removal.
    """
    if not _started:
        command = [sys.executable, "-I", "-S", __file__, *([DETACHED] if detached else [])]
        # A Ctrl-C, or the end of the terminal, is for the command.
        reaper = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        _started.append(reaper)
        atexit.register(close)
    pipe = _started[0].stdin
    assert pipe is not None
    # Somebody may have killed it; the command needs it only if it is killed, too.
    with contextlib.suppress(BrokenPipeError):
        pipe.write(f"{kind} {name}\n".encode())
    return pipe.fileno()


def close() -> None:
    """Let the reaper do its work, and wait for its end."""
    for reaper in _started:
        assert reaper.stdin is not None
        reaper.stdin.close()
        # A process that a rank has started may have the pipe, and outlive the run.
        with contextlib.suppress(subprocess.TimeoutExpired):
            reaper.wait(LIMIT_SECONDS)
    _started.clear()


def main() -> None:
    """Wait for the end of standard input, and remove what it has named."""
    if DETACHED in sys.argv and os.fork():
        os._exit(0)
    for line in dict.fromkeys(sys.stdin.read().splitlines()):
        kind, _, name = line.partition(" ")
        if kind == "folder":
            shutil.rmtree(name, ignore_errors=True)
        elif kind == "cgroups":
            _remove_cgroups(name)
        elif kind == "segments":
            _remove_segments(float(name))


def _remove_cgroups(beginning: str) -> None:
    """Remove cgroups whose paths begin so, once their processes have ended."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while (left := glob(f"{escape(beginning)}*")) and time.monotonic() < deadline:
        for folder in left:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        time.sleep(POLL_SECONDS)


def _remove_segments(since: float) -> None:
    """Remove MPICH's segments of this user that were made at `since` or later and that no process maps.

    MPICH itself unlinks a segment in `Finalize`, which a rank that is killed doesn't reach.
    """
    # Listed before it is asked who maps them: another command may make one meanwhile.
    segments = []
    for segment in Path("/dev/shm").glob("mpich_shm_*"):
        with contextlib.suppress(OSError):
            status = segment.stat()
            if status.st_uid == os.getuid() and status.st_mtime >= since - TICK_SECONDS:
                segments.append(segment)
    used = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        # The process may be gone by now, or another user's, who can't map these.
        with contextlib.suppress(OSError):
            used += maps.read_text(errors="replace")
    for segment in segments:
        with contextlib.suppress(OSError):
            if str(segment) not in used:
                segment.unlink()


if __name__ == "__main__":
    main()

"""Set the running process up: its name, its cores, and the parent with which it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

# prctl(2)
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


def start_time() -> float:
    """Return when this process was started, in seconds since 1970, to a hundredth.

    It is more exact than psutil's `create_time`, which counts from the machine's start in whole seconds.
    """
    # proc(5): the 22nd field is the start in ticks since boot; the name before it may hold spaces.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)


def set_name(name: str) -> None:
    """Name this process in `ps`, `top` and /proc/self/comm, where the first 15 letters count."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, the process that started it, ends in any way."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the call above.
    if os.getppid() != parent:
        os._exit(1)


def pin(cores: Iterable[int]) -> None:
    """Pin this process, and every thread that it starts from here on, to cores with these numbers."""
    os.sched_setaffinity(0, cores)

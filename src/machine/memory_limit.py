"""Tell how much memory this process may use."""

from __future__ import annotations

import contextlib
import os

from src.machine.memory_kills import counters

# In the folder of a cgroup of version 2 and 1; version 2 says `max` where there is no limit.
FILES = ("memory.max", "memory.limit_in_bytes")


def memory_limit() -> int:
    """Return the bytes of memory of this machine, or the limit of this process's cgroup if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for counter in counters():
        for name in FILES:
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((counter.parent / name).read_text()))
    return min(limits)

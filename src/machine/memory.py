"""Tell how much memory this process may use, and whether the kernel has killed a process for want of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from src.machine import cgroups


class MemoryKills:
    """Counts the processes that the kernel has killed for want of memory since this object was made.

    They are those of this process's cgroup (`memory.events`, `memory.oom_control`), whose limit may be below
    the machine's memory; where no cgroup counts, those of the whole machine (`/proc/vmstat`).
    """

    def __init__(self) -> None:
        """Begin to count."""
        self._path = next((path for path in counters() if _read(path) is not None), None)
        self._seen = self._count()

    def has_another(self) -> bool:
        """Return whether one was killed that no earlier call has returned."""
        if self._count() <= self._seen:
            return False
        self._seen += 1
        return True

    def _count(self) -> int:
        return 0 if self._path is None else _read(self._path) or 0


def counters() -> Iterator[Path]:
    """Yield the files that may count, the most specific first."""
    for version, folders in cgroups.own("memory"):
        yield from (
            folder / ("memory.events" if version == 2 else "memory.oom_control") for folder in folders
        )
    yield cgroups.PROC / "vmstat"


def _read(path: Path) -> int | None:
    """Return the number after `oom_kill` in a file, `None` if there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def memory_limit() -> int:
    """Return the bytes of memory of this machine, or the least limit of this process's cgroups."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for version, folders in cgroups.own("memory"):
        for folder in folders:
            # Version 2 says `max` where there is no limit.
            with contextlib.suppress(OSError, ValueError):
                name = "memory.max" if version == 2 else "memory.limit_in_bytes"
                limits.append(int((folder / name).read_text()))
    return min(limits)

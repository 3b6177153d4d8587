"""Tell whether the kernel has killed a process for want of memory, by the counters that it keeps of that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNT, PROC = Path("/sys/fs/cgroup"), Path("/proc")


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
    own = PROC / "self/cgroup"
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        # The mount may show the group of a container as its root; under version 1 there is one a controller.
        if "memory" in controllers.split(","):
            folders, name = (MOUNT / f"memory{path}", MOUNT / "memory"), "memory.oom_control"
        elif not controllers:
            folders, name = (MOUNT / path.lstrip("/"), MOUNT), "memory.events"
        else:
            continue
        yield from (folder / name for folder in folders)
    yield PROC / "vmstat"


def _read(path: Path) -> int | None:
    """Return the number after `oom_kill` in a file, `None` if there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)

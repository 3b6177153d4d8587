"""Read the kernel's counters: what threads ran and waited, how long cores were idle, pages read in."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from dataclasses import dataclass

PROC = "/proc"
TICKS = os.sysconf("SC_CLK_TCK")
# proc(5): places in a core's line of /proc/stat, after its name.
IDLE, IOWAIT, STEAL = 3, 4, 7
# The field of a thread's stat with its core, the 39th, counted after the name in brackets.
LAST_CORE = 36


@dataclass
class ThreadTimes:
    """The CPU time of a thread, or of all threads of a process, since they were started.

    Attributes:
        ran: seconds on a core.
        waited: seconds ready to run, and without a core.
        switches: how often the core was taken away (involuntary context switches).
    """

    ran: float = 0.0
    waited: float = 0.0
    switches: int = 0

    def add(self, other: ThreadTimes) -> None:
        """Add the times of another thread."""
        self.ran += other.ran
        self.waited += other.waited
        self.switches += other.switches


class ProcessTimes:
    """Sums the times of a process's threads; one that has ended counts with what it was last seen to have.

    `/proc/<pid>/schedstat` is no such sum: it is that of the process's first thread.

    Attributes:
        pid: the process.
        alive: whether it had not ended when it was last read.
        ran_on: seconds that its threads have run, by the core on which each was last seen (`by_core`).
    """

    def __init__(self, pid: int, *, by_core: bool = False) -> None:
        """Prepare to read the process `pid`, with `by_core` also on which cores it ran."""
        self.pid = pid
        self.alive = True
        self.ran_on: dict[int, float] = defaultdict(float)
        self._by_core = by_core
        self._threads: dict[str, ThreadTimes] = {}
        self._ended = ThreadTimes()

    def read(self) -> ThreadTimes | None:
        """Return the sums so far, of a process that has ended the last ones; `None` where none are kept."""
        threads: list[str] = []
        self.alive = False
        with contextlib.suppress(OSError):
            threads = os.listdir(f"{PROC}/{self.pid}/task")
        for thread in threads:
            # A thread may end in between; a kernel without CONFIG_SCHED_INFO has no schedstat.
            with contextlib.suppress(OSError):
                self._read_thread(thread)
        if not self._threads:
            return None
        total = ThreadTimes()
        for times in (self._ended, *self._threads.values()):
            total.add(times)
        return total

    def _read_thread(self, thread: str) -> None:
        folder = f"{PROC}/{self.pid}/task/{thread}"
        ran, waited, _ = _read(f"{folder}/schedstat").split()
        status = _read(f"{folder}/status")
        switches = status.rpartition(b"nonvoluntary_ctxt_switches:")[2]
        if thread == str(self.pid):
            # A process whose status nobody has asked for yet is a zombie.
            self.alive = b"\nState:\tZ" not in status
        times = ThreadTimes(int(ran) / 1e9, int(waited) / 1e9, int(switches))
        before = self._threads.get(thread, ThreadTimes())
        if times.ran < before.ran:
            # A new thread has the number of one that has ended.
            self._ended.add(before)
            before = ThreadTimes()
        self._threads[thread] = times
        if self._by_core:
            core = int(_read(f"{folder}/stat").rpartition(b")")[2].split()[LAST_CORE])
            self.ran_on[core] += times.ran - before.ran


@dataclass(frozen=True)
class CoreTimes:
    """The idle and stolen seconds of a core since the machine was started, exact to a tick of 0.01 s.

    Attributes:
        idle: without anything to run.
        stolen: wanted, and taken by the hypervisor for another machine.
    """

    idle: float
    stolen: float


def core_times() -> dict[int, CoreTimes]:
    """Return the times of each core, by its number; none where the kernel doesn't tell."""
    times: dict[int, CoreTimes] = {}
    with contextlib.suppress(OSError):
        for line in _read(f"{PROC}/stat").split(b"\n"):
            name, _, rest = line.partition(b" ")
            if name[:3] == b"cpu" and name[3:].isdigit():
                fields = [int(word) / TICKS for word in rest.split()]
                stolen = fields[STEAL] if len(fields) > STEAL else 0.0
                times[int(name[3:])] = CoreTimes(fields[IDLE] + fields[IOWAIT], stolen)
    return times


def pages_read_in() -> int | None:
    """Return how many page faults of all processes had to wait for a disk (`pgmajfault` of /proc/vmstat)."""
    with contextlib.suppress(OSError):
        for line in _read(f"{PROC}/vmstat").split(b"\n"):
            name, _, value = line.partition(b" ")
            if name == b"pgmajfault":
                return int(value)
    return None


def _read(path: str) -> bytes:
    # Without Python's layers, which take three times as long: a sample has more than a hundred of these.
    file = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(file, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(file)

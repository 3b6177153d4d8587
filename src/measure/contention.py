"""Tell how long a run's ranks were kept from their cores by others than the run itself.

A rank waits for a core for three reasons: neighbours, which are processes outside the run; its own kind, as
its sibling threads and the run's servers, coordinator and parent; or a quota (`hardware.speeds`). The kernel
counts how long each thread waited, but not for what. It does count how long each core was busy, and how long
each of the run's processes has run: what is left of a core's busy time is the neighbours'. A rank can't have
waited for them any longer than they ran, nor than it waited at all: so the lesser of the two is taken. It is
at most what a neighbour cost, of a quiet run near 0 however long its threads wait for each other, and is not
raised by one that ran while the rank slept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from src.machine.counters import CoreTimes, ProcessTimes, ThreadTimes, core_times, pages_read_in
from src.measure.rank_record import RankRecord

# Attributes of a reading that are summed over a rank's window.
COUNTERS = ("waited", "switches", "busy", "own", "stolen", "routed")


@dataclass(frozen=True)
class RankReading:
    """Counters of a rank at one moment, which only rise; times are seconds.

    Attributes:
        pid: the process that is the rank.
        waited: that its threads were ready and had no core, summed.
        switches: involuntary context switches of its threads, summed.
        busy: that its cores were not idle, summed.
        own: that processes of the run have run on its cores.
        stolen: that its cores were wanted and the hypervisor ran another machine, summed.
        cores: number of its cores.
        routed: that the switch of emulated hosts has run on its cores, which is part of `own`.
    """

    pid: int
    waited: float
    switches: int
    busy: float
    own: float
    stolen: float
    cores: int
    routed: float = 0.0


@dataclass(frozen=True)
class Reading:
    """Counters of one moment.

    Attributes:
        time: seconds since 1970.
        ranks: those of each rank.
        page_ins: page faults of the whole machine that had to wait for a disk.
        complete: whether no process of the run has ended since the last reading, whose last counts are lost.
    """

    time: float
    ranks: Mapping[int, RankReading]
    page_ins: int | None = None
    complete: bool = True


@dataclass(frozen=True)
class Disturbance:
    """The disturbance of a rank within its timed window.

    Attributes:
        rank: the rank.
        seconds: of the window that were sampled.
        waited: seconds that its threads waited for a core, for whatever reason.
        neighbours: seconds that processes outside the run used its cores.
        stolen: seconds that the hypervisor took from its cores.
        switches: involuntary context switches of its threads.
        cores: number of its cores.
        routed: seconds that the switch of emulated hosts used its cores; it is no neighbour.
    """

    rank: int
    seconds: float
    waited: float
    neighbours: float
    stolen: float
    switches: float
    cores: int
    routed: float = 0.0

    @property
    def cpu_wait_fraction(self) -> float:
        """Return the time that it waited for neighbours, over the window; several cores may add up to 1."""
        return min(1.0, min(self.waited, self.neighbours) / self.seconds)

    @property
    def steal_fraction(self) -> float:
        """Return the time that was stolen from its cores, over the window and their number."""
        return self.stolen / (self.seconds * self.cores)

    @property
    def router_fraction(self) -> float:
        """Return the time in which the switch used its cores, over the window and their number."""
        return self.routed / (self.seconds * self.cores)


@dataclass(frozen=True)
class _Followed:
    """The processes of a run.

    By rank its process and cores; all processes with their cores, if any; that of the switch, if any.
    """

    ranks: Sequence[tuple[int, int, frozenset[int]]] = ()
    processes: Sequence[tuple[ProcessTimes, frozenset[int]]] = ()
    switch: int | None = None


class ContentionReader:
    """Reads the counters of a run's processes and of their cores."""

    def __init__(self) -> None:
        """Prepare to follow processes; none is followed yet."""
        self._followed = _Followed()
        self._ended: set[int] = set()

    def follow(
        self,
        ranks: Iterable[tuple[int, int, Sequence[int]]],
        others: Iterable[tuple[int, Sequence[int]]],
        switch: int | None = None,
    ) -> None:
        """Follow these ranks (rank, process id, cores) and others of the run (process id, cores).

        One of the others may be the `switch` of emulated hosts. This process is one of the others. One
        without cores of its own may run on any. Processes that were followed before count with what they have
        used.
        """
        known = {times.pid: (times, cores) for times, cores in self._followed.processes}
        cores_of: dict[int, set[int]] = {}
        rank_of: dict[int, int] = {}
        for rank, pid, cores in ranks:
            rank_of.setdefault(rank, pid)
            cores_of.setdefault(pid, set()).update(cores)
        for pid, cores in (*others, (os.getpid(), ())):
            cores_of.setdefault(pid, set()).update(cores)
        for pid, used in cores_of.items():
            if pid not in known:
                known[pid] = ProcessTimes(pid, by_core=not used), frozenset(used)
        places = [(rank, pid, known[pid][1]) for rank, pid in rank_of.items()]
        self._followed = _Followed(places, list(known.values()), switch)

    def read(self) -> Reading | None:
        """Return the counters now; `None` where the kernel keeps none, or nothing is followed."""
        followed = self._followed
        cores, moment, monotonic = core_times(), time.time(), time.monotonic()
        used = {each.pid: each.read() for each, _ in followed.processes}
        ended = {each.pid for each, _ in followed.processes if not each.alive}
        complete, self._ended = ended <= self._ended, ended
        readings: dict[int, RankReading] = {}
        for rank, pid, own_cores in followed.ranks:
            times = used[pid]
            if times is None or not own_cores <= cores.keys():
                continue
            ran = {
                each.pid: _ran_on(own_cores, each, used[each.pid], pinned)
                for each, pinned in followed.processes
            }
            readings[rank] = RankReading(
                pid,
                times.waited,
                times.switches,
                _busy(monotonic, [cores[core] for core in own_cores]),
                sum(ran.values()),
                sum(cores[core].stolen for core in own_cores),
                len(own_cores),
                ran.get(followed.switch or 0, 0.0),
            )
        return Reading(moment, readings, pages_read_in(), complete) if readings else None


def _ran_on(
    cores: frozenset[int], process: ProcessTimes, times: ThreadTimes | None, pinned: frozenset[int]
) -> float:
    """Return the seconds that a process, pinned to the cores `pinned` if any, has run on `cores`."""
    if not pinned:
        return sum(process.ran_on.get(core, 0.0) for core in cores)
    return times.ran if times is not None and pinned & cores else 0.0


def _busy(now: float, cores: Sequence[CoreTimes]) -> float:
    """Return the seconds that cores were not idle, up to a constant.

    Idle and stolen time are exact, while the kernel's count of busy time is of ticks: of samples.
    """
    return sum(now - core.idle - core.stolen for core in cores)


def disturbances(readings: Sequence[Reading], records: Mapping[int, RankRecord]) -> list[Disturbance]:
    """Return what disturbed each rank within its window, of the ranks with a window that was sampled.

    An interval between two readings that is partly outside the window or off the clock counts with the part
    of it that is inside.
    """
    found = []
    for rank, record in records.items():
        seconds, cores = 0.0, 0
        sums = dict.fromkeys(COUNTERS, 0.0)
        for start, end, share in _shares(readings, rank, record):
            before, after = start.ranks[rank], end.ranks[rank]
            seconds += share * (end.time - start.time)
            for counter in COUNTERS:
                sums[counter] += share * (getattr(after, counter) - getattr(before, counter))
            cores = after.cores
        if seconds > 0:
            neighbours = max(0.0, sums.pop("busy") - sums.pop("own"))
            found.append(Disturbance(rank, seconds, neighbours=neighbours, cores=cores, **sums))
    return found


def _shares(
    readings: Sequence[Reading], rank: int, record: RankRecord
) -> Iterator[tuple[Reading, Reading, float]]:
    """Yield neighbouring readings of a rank, with the share of their interval that is timed, if any is."""
    if "window" not in record:
        return
    begin, finish = record["window"]
    for start, end in pairwise(reading for reading in readings if rank in reading.ranks):
        opened, closed = max(start.time, begin), min(end.time, finish)
        timed = closed - opened
        if timed <= 0 or not end.complete or end.ranks[rank].pid != start.ranks[rank].pid:
            continue
        timed -= sum(max(0.0, min(closed, b) - max(opened, a)) for a, b in record.get("off_clock", ()))
        if timed > 0:
            yield start, end, timed / (end.time - start.time)


def fractions(found: Sequence[Disturbance]) -> dict[str, float | None]:
    """Return the figures of a run: those of the rank that waited, or was stolen from, the most."""
    return {
        "cpu_wait_fraction": max((each.cpu_wait_fraction for each in found), default=None),
        "steal_fraction": max((each.steal_fraction for each in found), default=None),
        "router_fraction": max((each.router_fraction for each in found if each.routed), default=None),
    }


def facts(
    found: Sequence[Disturbance], readings: Sequence[Reading], records: Mapping[int, RankRecord]
) -> dict[str, Any]:
    """Return the facts behind these figures for environment.json, by rank, and the page-ins meanwhile."""
    windows = [record["window"] for record in records.values() if "window" in record]
    ins = [
        reading.page_ins
        for reading in readings
        if reading.page_ins is not None and any(start <= reading.time <= end for start, end in windows)
    ]
    return {
        "ranks": [
            {
                "rank": each.rank,
                "cpu_wait_fraction": each.cpu_wait_fraction,
                "steal_fraction": each.steal_fraction,
                "all_wait_fraction": each.waited / each.seconds,
                "neighbours_fraction": each.neighbours / each.seconds,
                "router_fraction": each.router_fraction,
                "involuntary_switches": round(each.switches),
                "sampled_seconds": each.seconds,
            }
            for each in found
        ],
        "page_ins": ins[-1] - ins[0] if ins else None,
    }

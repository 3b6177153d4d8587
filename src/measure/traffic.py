"""Count what a run's hosts send to each other while it trains, by their network interfaces."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection

from src.machine.interfaces import LOOPBACK, Counters, counters_of
from src.run.variables import NETWORKS


def total(interfaces: Collection[Counters]) -> tuple[int, int]:
    """Return the bytes that were sent and received over all `interfaces`; 0 without one."""
    return sum(each.sent_bytes for each in interfaces), sum(each.received_bytes for each in interfaces)


class TrafficMeter:
    """Counts the bytes that each host of a run sends and receives between `start` and `stop`.

    The environment names the hosts, and for each a process whose `/proc` entry shows its network; it names
    none where others' bytes would be counted, too. A host's bytes are those of its interfaces but the
    loopback; a host that has nothing else is the only one of a run in a namespace: there the loopback counts.
    """

    def __init__(self) -> None:
        self._shown_by: dict[str, str] = json.loads(os.environ.get(NETWORKS, "{}"))
        self._begun: dict[str, tuple[int, int]] = {}
        self._counted: dict[str, list[int]] = {}

    def start(self) -> None:
        """Begin to count, or go on after `stop`."""
        self._begun = self._read()

    def stop(self) -> None:
        """Count no more until `start`."""
        for host, now in self._read().items():
            begun, counted = self._begun.get(host, now), self._counted.setdefault(host, [0, 0])
            for way in (0, 1):
                counted[way] += now[way] - begun[way]
        self._begun = {}

    def by_host(self) -> dict[str, tuple[int, int]]:
        """Return the bytes sent and received, by host; nothing where they can't be counted."""
        return {host: (sent, received) for host, (sent, received) in self._counted.items()}

    def _read(self) -> dict[str, tuple[int, int]]:
        found = {}
        for host, process in self._shown_by.items():
            # Its holder has ended with the switch, of which the parent knows.
            with contextlib.suppress(OSError):
                every = counters_of(process)
                counted = [each for name, each in every.items() if name != LOOPBACK] or list(every.values())
                found[host] = total(counted)
        return found

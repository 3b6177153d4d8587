"""Read what has crossed the network interfaces of a host."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

LOOPBACK = "lo"


@dataclass(frozen=True)
class Counters:
    """The bytes and packets of one interface since it was made; a packet may be several segments of TCP."""

    sent_bytes: int = 0
    received_bytes: int = 0
    sent_packets: int = 0
    received_packets: int = 0

    def since(self, start: Counters) -> Counters:
        """Return what came after `start`."""
        return Counters(*(now - then for now, then in zip(astuple(self), astuple(start), strict=True)))


def counters_of(process: int | str = "self") -> dict[str, Counters]:
    """Return the counters of each interface in the network namespace of a process, by name.

    Raises:
        OSError: where the process has ended.
    """
    lines = Path(f"/proc/{process}/net/dev").read_text().splitlines()[2:]
    found = {}
    for line in lines:
        name, _, rest = line.rpartition(":")
        # proc(5): eight columns of what was received, and then eight of what was sent.
        columns = [int(word) for word in rest.split()]
        found[name.strip()] = Counters(columns[8], columns[0], columns[9], columns[1])
    return found

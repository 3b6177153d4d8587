"""Describe emulated links: the rate, delay and loss of each direction between a host and its switch.

Hosts are joined by one switch, so that a packet crosses the sender's link upwards and the receiver's
downwards. The names are those of Linux's network emulator, tc-netem(8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Direction:
    """One direction of a link.

    Attributes:
        rate_mbit: 10^6 bits of Ethernet frames a second, `None` for as many as the machine can.
        delay_ms: milliseconds by which each packet is delayed.
        loss: share of packets that are lost, 0 to 1.
    """

    rate_mbit: float | None = None
    delay_ms: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class Link:
    """The link of a host: from the host to the switch (`up`), and from the switch to the host (`down`)."""

    up: Direction = Direction()
    down: Direction = Direction()

    @classmethod
    def parse(cls, described: Mapping[str, Mapping[str, Any]]) -> Link:
        """Read a link that `describe` has written."""
        return cls(Direction(**described["up"]), Direction(**described["down"]))

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return the link as JSON has it."""
        return asdict(self)

    @property
    def delayed(self) -> bool:
        """Return whether packets are delayed or lost, which needs more than a limited rate."""
        return any(way.delay_ms or way.loss for way in (self.up, self.down))


def rate_between(sender: Link, receiver: Link) -> float | None:
    """Return the rate from one host to another in Mbit/s, `None` where it isn't limited."""
    rates = [rate for rate in (sender.up.rate_mbit, receiver.down.rate_mbit) if rate is not None]
    return min(rates, default=None)


def round_trip_between(one: Link, other: Link) -> float:
    """Return the milliseconds that the links of two hosts add to a round trip between them."""
    return sum(way.delay_ms for link in (one, other) for way in (link.up, link.down))

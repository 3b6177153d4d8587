"""Tell how much a run's links carried, and how long that takes at the rates that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

Traffic = Mapping[str, tuple[int, int]]


def facts(network: Mapping[str, Any], traffic: Traffic) -> dict[str, float | None]:
    """Return the figures of a run's links for `metrics.json`; none where its hosts aren't emulated.

    `link_rate_mbit` and `link_round_trip_ms` are the least rate and the longest round trip that were measured
    between two hosts before the training, `link_rate_asked_mbit` and `link_round_trip_asked_ms` those that
    were asked for. `wire_seconds` is how long the busiest link takes for what it carried while the run
    trained, in its busier direction, and `wire_seconds_in_turn` how long for both directions, one after the
    other.

    Args:
        network: what `network.json` holds, empty without one.
        traffic: bytes sent and received, by host.
    """
    ways = network.get("links") or []
    if not ways:
        return {}
    asked = [way["asked"]["rate_mbit"] for way in ways if way["asked"]["rate_mbit"] is not None]
    found: dict[str, float | None] = {
        "link_rate_asked_mbit": min(asked, default=None),
        "link_round_trip_asked_ms": max(way["asked"]["round_trip_ms"] for way in ways),
        "link_rate_mbit": min(way["measured"]["rate_mbit"] for way in ways),
        "link_round_trip_ms": max(way["measured"]["round_trip_ms"] for way in ways),
    }
    taken = [_seconds(network, host, *crossed) for host, crossed in traffic.items()]
    if taken:
        found["wire_seconds"] = max(max(up, down) for up, down in taken)
        found["wire_seconds_in_turn"] = max(up + down for up, down in taken)
    return found


def _seconds(network: Mapping[str, Any], host: str, sent: int, received: int) -> tuple[float, float]:
    """Return how long a host's link takes for what it sent up, and for what came down."""
    link = network["hosts"][host]["link"]
    up, down = (_rate(network, link[way]["rate_mbit"]) for way in ("up", "down"))
    return sent * 8e-6 / up, received * 8e-6 / down


def _rate(network: Mapping[str, Any], asked: float | None) -> float:
    """Return what a link gives of a rate in Mbit/s: the share that all together gave while they were idle.

    A link that isn't limited gives the most that was measured.
    """
    ways = network["links"]
    shares = [
        way["measured"]["rate_mbit"] / way["asked"]["rate_mbit"]
        for way in ways
        if way["asked"]["rate_mbit"] is not None
    ]
    if asked is None or not shares:
        return max(way["measured"]["rate_mbit"] for way in ways)
    return asked * median(shares)

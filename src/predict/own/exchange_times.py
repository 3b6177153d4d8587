"""Say how long an exchange takes on a machine whose exchanges were measured, by size and number of ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from src.config import Config, ConfigError
from src.partition.model_profile import Link
from src.predict.own.cost_profile import Profile
from src.predict.program import Event

SHARED_MEMORY = "all_reduce_in_shared_memory"
# What an exchange of a kind takes where that wasn't measured itself.
LIKE = {
    "broadcast": "all_gather",
    "gather": "all_gather",
    "all_to_all": "all_gather",
    "barrier": "all_gather",
}


@dataclass(frozen=True)
class ExchangeTimes:
    """The measured seconds of exchanges between ranks.

    Attributes:
        ranks: how many took part.
        points: by operation, (bytes of the whole tensor, seconds) of each size.
        network: how many times as fast the network is as it was measured.
    """

    ranks: int
    points: Mapping[str, tuple[np.ndarray, np.ndarray]]
    network: float = 1.0

    @classmethod
    def of(cls, profile: Profile, config: Config, network: float = 1.0) -> ExchangeTimes:
        """Return those between a run's workers; raise `ConfigError` where none were measured."""
        links = config.hardware.links
        between = None if links is None else json.dumps(links, sort_keys=True, default=str)
        rows = [each for each in profile.exchanges if each["links"] == between]
        if not rows:
            raise ConfigError(
                f"{profile.path}: has no exchanges over hardware={config.hardware.name}; profile that, too"
            )
        nearest = min(rows, key=lambda each: abs(each["ranks"] - config.workers))
        return cls(nearest["ranks"], _points(nearest["rows"]), network)

    def seconds(self, event: Event, *, shared_memory: bool) -> float:
        """Return how long an exchange takes, at first hand."""
        shared = event.kind == "all_reduce" and shared_memory and SHARED_MEMORY in self.points
        operation = SHARED_MEMORY if shared else LIKE.get(event.kind, event.kind)
        # A rank hands over its own part of what all gather.
        size = event.size * event.ranks if operation == "all_gather" else event.size
        sizes, seconds = self.points[operation]
        found = float(np.interp(size, sizes, seconds))
        if size > sizes[-1]:
            found *= size / sizes[-1]
        # A ring of more ranks sends as much more of a tensor, in as many more messages.
        latency = min(float(seconds[0]), found)
        sent = (event.ranks - 1) / event.ranks / ((self.ranks - 1) / self.ranks)
        steps = (event.ranks - 1) / (self.ranks - 1)
        return (latency * steps + (found - latency) * sent) / self.network

    @property
    def link(self) -> Link:
        """Return the link over which stages send to each other."""
        sizes, seconds = self.points["send_receive"]
        large = int(np.searchsorted(sizes, 2**22))
        per_byte = max(0.0, float(seconds[large] - seconds[0])) / float(sizes[large] - sizes[0])
        return Link(float(seconds[0]) / self.network, per_byte / self.network)


def _points(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return (bytes, seconds) of each operation, in order of size, of the slowest pair of ranks."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        own = found.setdefault(row["operation"], {})
        for each in row["sizes"]:
            own[each["bytes"]] = max(own.get(each["bytes"], 0.0), each["seconds"])
    return {
        name: (np.array(sorted(own), dtype=float), np.array([own[size] for size in sorted(own)]))
        for name, own in found.items()
    }

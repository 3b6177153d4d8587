"""Say how long an exchange takes on a machine whose exchanges were measured, by size and number of ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from src.config import Config
from src.partition.model_profile import Link
from src.predict.own.added import ASK, FETCH, PUSH
from src.predict.own.cost_profile import NotProfiled, Profile
from src.predict.program import Event

SHARED_MEMORY = "all_reduce_in_shared_memory"
SEND = "send_receive"
DDP, TORCH = "ddp", "src.runtime.torch.exchange_profile"
# What an exchange takes that isn't measured itself, as one of these, is that of another one.
ALL_GATHER = "all_gather"
LIKE_ALL_GATHER = ("broadcast", "gather", "all_to_all", "barrier")
# A rank hands over its own part of what these leave with all.
GATHERS = ("all_gather", "gather")
LARGE = 2**22

# By operation, (bytes of the whole tensor, seconds) of each size.
Points = Mapping[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class ExchangeTimes:
    """The measured seconds of exchanges between ranks.

    Attributes:
        points: by how many ranks took part.
        path: of the profile that has them.
        network: how many times as fast the network is as it was measured.
    """

    points: Mapping[int, Points]
    path: Path
    network: float = 1.0

    @classmethod
    def of(cls, profile: Profile, config: Config, network: float = 1.0) -> ExchangeTimes:
        """Return those between a run's workers; raise `ConfigError` where none were measured."""
        wanted = between(config)
        measured: dict[int, list[Any]] = {}
        for each in profile.exchanges:
            if (each["device"], each["links"], each.get("by", DDP)) == wanted:
                measured.setdefault(each["ranks"], []).append(each["rows"])
        if not measured:
            raise NotProfiled(
                f"{profile.path}: has no exchanges of strategy={config.strategy['name']} with hardware="
                f"{config.hardware.name} on a {wanted[0]}; profile several workers with that, for which it "
                "takes several devices"
            )
        return cls({ranks: _points(sets) for ranks, sets in measured.items()}, profile.path, network)

    def seconds(self, event: Event, *, shared_memory: bool) -> float:
        """Return how long an exchange takes, at first hand."""
        ranks = min(self.points, key=lambda count: abs(count - event.ranks))
        shared = event.kind == "all_reduce" and shared_memory
        operation = SHARED_MEMORY if shared else ALL_GATHER if event.kind in LIKE_ALL_GATHER else event.kind
        if event.kind in (ASK, FETCH, PUSH):
            # A worker and a server are two, however many there are. What is sent is there and back, with next
            # to nothing one way.
            known = self._measured(min(self.points), SEND)
            return (self._at(*known, event.size) + self._at(*known, 0.0)) / self.network
        size = event.size * event.ranks if event.kind in GATHERS else event.size
        sizes, seconds = self._measured(ranks, operation)
        found = self._at(sizes, seconds, size)
        if shared:
            # Each rank adds up all ranks' slots.
            return found * event.ranks / ranks / self.network
        # A ring of more ranks sends as much more of a tensor, in as many more messages.
        latency = min(float(seconds[0]), found)
        sent = (event.ranks - 1) / event.ranks / ((ranks - 1) / ranks)
        steps = (event.ranks - 1) / (ranks - 1)
        return (latency * steps + (found - latency) * sent) / self.network

    @staticmethod
    def _at(sizes: np.ndarray, seconds: np.ndarray, size: float) -> float:
        found = float(np.interp(size, sizes, seconds))
        return found * size / sizes[-1] if size > sizes[-1] else found

    @property
    def link(self) -> Link:
        """Return the link over which stages send to each other."""
        sizes, seconds = self._measured(min(self.points), SEND)
        large = min(int(np.searchsorted(sizes, LARGE)), len(sizes) - 1)
        per_byte = 0.0
        if large:
            per_byte = max(0.0, float(seconds[large] - seconds[0])) / float(sizes[large] - sizes[0])
        return Link(float(seconds[0]) / self.network, per_byte / self.network)

    def has(self, operation: str) -> bool:
        """Return whether an operation was measured."""
        return any(operation in each for each in self.points.values())

    def _measured(self, ranks: int, operation: str) -> tuple[np.ndarray, np.ndarray]:
        if operation not in self.points[ranks]:
            raise NotProfiled(f"{self.path}: has no {operation} between {ranks} ranks")
        return self.points[ranks][operation]


def measured_by(config: Config) -> str:
    """Return the name of the strategy by whose exchanges a run's are predicted.

    Those of torch's process groups are measured by `ddp`, whichever strategy makes them.
    """
    like = (config.strategy.get("predicted") or {}).get("exchanges_like")
    module = (config.strategy.get("exchange") or {}).get("profile")
    return like or (DDP if module in (None, TORCH) else config.strategy["name"])


def library(config: Config) -> str:
    """Return by what a run's workers exchange: whose exchanges that are, and options that change them."""
    default = {"backend": "gloo"} if config.hardware.device == "cpu" else {}
    options = {key: config.strategy.get(key) for key in ("mpiexec", "backend", "communication")}
    chosen = [
        f"{key}={value}" for key, value in options.items() if value not in (None, "auto", default.get(key))
    ]
    return " ".join([measured_by(config), *chosen])


def between(config: Config) -> tuple[str, str | None, str]:
    """Return on what a run's workers are, what lies between them, and what measures that.

    What lies between them are links, or `None` on one host.
    """
    hardware = config.hardware
    links = None if hardware.links is None else json.dumps(hardware.links, sort_keys=True, default=str)
    device = (
        hardware.device if hardware.device == "gpu" else f"cpu device of {hardware.cores_per_device} core(s)"
    )
    return device, links, library(config)


def _points(sets: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return (bytes, seconds) of each operation, in order of size, of the slowest pair of ranks.

    Of what was measured several times the median counts.
    """
    found: dict[str, dict[int, list[float]]] = {}
    for rows in sets:
        slowest: dict[tuple[str, int], float] = {}
        for row in rows:
            for each in row["sizes"]:
                key = row["operation"], each["bytes"]
                slowest[key] = max(slowest.get(key, 0.0), each["seconds"])
        for (operation, size), seconds in slowest.items():
            found.setdefault(operation, {}).setdefault(size, []).append(seconds)
    return {
        name: (np.array(sorted(own), dtype=float), np.array([median(own[size]) for size in sorted(own)]))
        for name, own in found.items()
    }

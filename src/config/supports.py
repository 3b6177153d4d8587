"""Define what a strategy supports, as its file in conf/strategy/ says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest number that a strategy takes; `max` is `None` where any is fine."""

    default: int
    min: int
    max: int | None


@dataclass(frozen=True)
class Supports:
    """The keys of a strategy's `supports`, which docs/extending.md explains.

    `batch_shares` and `hosts` may depend on options: on the value of each, or on one of several.
    """

    devices: Sequence[str]
    workers: Bounds
    microbatches: Bounds
    shares_batch: bool
    batchnorm: Sequence[str]
    precision: Sequence[str]
    batch_shares: bool | Mapping[str, Any] = False
    hosts: bool | Mapping[str, Sequence[Any]] = False
    profiler: bool = False
    checkpoints: bool = False
    needs: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, strategy: Mapping[str, Any]) -> Supports:
        """Read what a strategy's mapping says; further keys of a user's own are left out."""
        known = {each.name for each in fields(cls)}
        described = {key: value for key, value in strategy["supports"].items() if key in known}
        for key in ("workers", "microbatches"):
            bounds = described[key]
            described[key] = Bounds(bounds["default"], bounds["min"], bounds["max"])
        return cls(**described)

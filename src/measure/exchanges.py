"""Tally what one rank exchanges, by the axis of the mesh along which it does and by the kind of exchange.

Counted is what the rank hands over, as for `payload_bytes`: its own tensor of an all-reduce or a
reduce-scatter, its own part of an all-gather, each tensor that it sends to one other rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from src.measure.arithmetic import ring_bytes
from src.measure.rank_record import RankRecord
from src.run.tables import Row


class Exchange(NamedTuple):
    """A kind of exchange among ranks along one axis.

    Attributes:
        axis: `data`, `shard`, `pipeline` or `tensor`, as of `Degrees`.
        kind: `all_reduce`, `reduce_scatter`, `all_gather` or `point_to_point`.
        ranks: how many take part.
    """

    axis: str
    kind: str
    ranks: int


@dataclass
class Tally:
    """How often a rank took part in exchanges of one kind, and the bytes that it handed over."""

    count: int = 0
    size: int = 0


def facts(tallies: Mapping[Exchange, Tally], steps: int) -> list[list[Any]]:
    """Return (axis, kind, ranks, exchanges a step, bytes a step) of each tally of so many steps."""
    steps = max(1, steps)
    return [[*exchange, tally.count / steps, tally.size / steps] for exchange, tally in tallies.items()]


def rows(records: Mapping[int, RankRecord]) -> list[Row]:
    """Return what each rank exchanged in a step, with the columns `EXCHANGE_FIELDS`."""
    return [
        {
            **{"rank": rank, "axis": axis, "kind": kind, "ranks": ranks, "exchanges": count, "bytes": size},
            "ring_bytes": ring_bytes(kind, ranks, size),
        }
        for rank, record in records.items()
        for axis, kind, ranks, count, size in sorted(record.get("exchanges", []))
    ]


def largest_by_axis(found: Sequence[Row]) -> dict[str, float]:
    """Return by axis the bytes that the rank which hands over most along it does in a step."""
    of_rank: dict[tuple[str, int], float] = {}
    for row in found:
        key = row["axis"], row["rank"]
        of_rank[key] = of_rank.get(key, 0.0) + row["bytes"]
    most: dict[str, float] = {}
    for (axis, _), size in of_rank.items():
        most[axis] = max(most.get(axis, 0.0), size)
    return most

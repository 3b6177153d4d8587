"""Make the table of a pipeline's step: what each rank does under a schedule."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from src.config.schedules import refusal
from src.partition.schedules import orders
from src.partition.schedules.actions import Action, Table

# From (rank, ranks, stages of a rank, micro-batches).
ORDERS: dict[str, Callable[[int, int, int, int], list[Action]]] = {
    "gpipe": orders.gpipe,
    "1f1b": orders.one_forward_one_backward,
    "looped_bfs": orders.looped_bfs,
    "interleaved": orders.interleaved,
    "zero_bubble": orders.zero_bubble,
    "zbv": orders.zbv,
    "dualpipe_v": orders.dualpipe_v,
}


@lru_cache(maxsize=64)
def table(name: str | None, ranks: int, virtual: int, microbatches: int) -> Table:
    """Return what each rank does; without a schedule, one micro-batch after the other.

    Raises:
        ValueError: for numbers that the schedule can't have (`refusal`).
    """
    if name is None:
        return tuple(tuple(orders.sequential(rank, microbatches)) for rank in range(ranks))
    if reason := refusal(name, ranks, virtual, microbatches):
        raise ValueError(reason)
    return tuple(tuple(ORDERS[name](rank, ranks, virtual, microbatches)) for rank in range(ranks))

"""List the schedules of a pipeline: where their stages lie, what they ask for, and their tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from src.partition.schedules import orders
from src.partition.schedules.actions import Action, Placement, Table


@dataclass(frozen=True)
class Schedule:
    """A schedule as it is listed.

    Attributes:
        order: returns what one rank does, from (rank, ranks, stages of a rank, micro-batches).
        virtual: the least and the most stages of a rank; `None` without a most.
        placement: how stages lie on the ranks.
        splits: whether backward passes for inputs and for weights are apart.
        least: the fewest micro-batches by (ranks, stages of a rank).
        rounds: whether micro-batches come in rounds of equal size, one to a rank or more.
    """

    order: Callable[[int, int, int, int], list[Action]]
    virtual: tuple[int, int | None] = (1, 1)
    placement: Placement = Placement.LOOP
    splits: bool = False
    least: Callable[[int, int], int] = lambda ranks, virtual: 1
    rounds: bool = False


SCHEDULES = {
    "gpipe": Schedule(orders.gpipe),
    # It fills the pipeline before it drains: torch refuses fewer micro-batches than stages.
    "1f1b": Schedule(orders.one_forward_one_backward, least=lambda ranks, virtual: ranks),
    "looped_bfs": Schedule(orders.looped_bfs, virtual=(1, None)),
    "interleaved": Schedule(orders.interleaved, virtual=(1, None), rounds=True),
    "zero_bubble": Schedule(orders.zero_bubble, virtual=(1, None), splits=True, rounds=True),
    "zbv": Schedule(orders.zbv, virtual=(2, 2), placement=Placement.V, splits=True),
    "dualpipe_v": Schedule(
        orders.dualpipe_v,
        virtual=(2, 2),
        placement=Placement.V,
        splits=True,
        least=lambda ranks, virtual: ranks * virtual,
    ),
}


def refusal(name: str, ranks: int, virtual: int, microbatches: int) -> str | None:
    """Return why a schedule can't have these numbers, and which it can; `None` where it can."""
    schedule = SCHEDULES[name]
    fewest, most = schedule.virtual
    if virtual < fewest or (most is not None and virtual > most):
        allowed = f"at least {fewest}" if most is None else f"{fewest}"
        return f"strategy.virtual_stages={virtual}: schedule {name} has {allowed} a worker"
    least = schedule.least(ranks, virtual)
    if microbatches < least:
        return (
            f"microbatches={microbatches}: schedule {name} needs at least {least} for {ranks * virtual} "
            f"stages; choose microbatches={least}"
        )
    if schedule.rounds and microbatches % (turns := max(1, microbatches // ranks)):
        return (
            f"microbatches={microbatches}: schedule {name} does them in {turns} rounds of equal size; choose "
            f"microbatches={microbatches - microbatches % turns}"
        )
    return None


@lru_cache(maxsize=64)
def table(name: str, ranks: int, virtual: int, microbatches: int) -> Table:
    """Return what each rank does under a schedule.

    Raises:
        ValueError: for numbers that it can't have (`refusal`).
    """
    if reason := refusal(name, ranks, virtual, microbatches):
        raise ValueError(reason)
    order = SCHEDULES[name].order
    return tuple(tuple(order(rank, ranks, virtual, microbatches)) for rank in range(ranks))

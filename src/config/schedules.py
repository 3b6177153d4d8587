"""List the schedules of a pipeline: how many stages a worker has, where they lie, and what each asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Placement(StrEnum):
    """How the stages lie on the ranks.

    Attributes:
        LOOP: stage i is on rank i mod p (Narayanan et al. 2021, Efficient Large-Scale Language Model Training
            on GPU Clusters Using Megatron-LM, section 2.2).
        V: the first p stages go down the ranks and the next ones up again, so that the first and the last
            stage are on rank 0 (Qi et al. 2023, Zero Bubble Pipeline Parallelism, section 6).
    """

    LOOP = "loop"
    V = "v"

    def rank(self, stage: int, ranks: int) -> int:
        """Return the rank that holds a stage, of so many ranks."""
        turn, place = divmod(stage, ranks)
        return ranks - 1 - place if self is Placement.V and turn % 2 else place

    def stages(self, rank: int, ranks: int, virtual: int) -> tuple[int, ...]:
        """Return the `virtual` stages that a rank holds, in the order of the model."""
        return tuple(stage for stage in range(ranks * virtual) if self.rank(stage, ranks) == rank)


@dataclass(frozen=True)
class Schedule:
    """A schedule as it is listed; `src.partition.schedules.orders` has its order.

    Attributes:
        virtual: the least stages of a worker, the most, `None` without a most, and those by default.
        placement: how stages lie on the workers.
        splits: whether backward passes for inputs and for weights are apart.
        filled: whether it needs as many micro-batches as there are stages.
        rounds: whether micro-batches come in rounds of equal size, of one for each worker or more.
    """

    virtual: tuple[int, int | None, int] = (1, 1, 1)
    placement: Placement = Placement.LOOP
    splits: bool = False
    filled: bool = False
    rounds: bool = False

    @property
    def several(self) -> bool:
        """Return whether a worker may have several stages."""
        return self.virtual[1] != 1


SCHEDULES = {
    "gpipe": Schedule(),
    "1f1b": Schedule(filled=True),
    "looped_bfs": Schedule((1, None, 2)),
    "interleaved": Schedule((1, None, 2), rounds=True),
    "zero_bubble": Schedule((1, None, 2), splits=True, rounds=True),
    "zbv": Schedule((2, 2, 2), Placement.V, splits=True),
    "dualpipe_v": Schedule((2, 2, 2), Placement.V, splits=True, filled=True),
}


def refusal(name: str, ranks: int, virtual: int, microbatches: int) -> str | None:
    """Return why a schedule can't have these numbers, and which it can; `None` where it can."""
    if (schedule := SCHEDULES.get(name)) is None:
        return f"strategy.schedule={name}: stages are cut for {', '.join(SCHEDULES)}"
    fewest, most, _ = schedule.virtual
    if virtual < fewest or (most is not None and virtual > most):
        return (
            f"strategy.virtual_stages={virtual}: strategy.schedule={name} has "
            f"{fewest if most else f'at least {fewest}'} a worker"
        )
    if schedule.filled and microbatches < ranks * virtual:
        return (
            f"microbatches={microbatches}: strategy.schedule={name} needs at least as many as there are "
            f"stages, {ranks * virtual}"
        )
    if schedule.rounds and (left := microbatches % max(1, microbatches // ranks)):
        return (
            f"microbatches={microbatches}: strategy.schedule={name} does them in "
            f"{microbatches // ranks} rounds of equal size; the nearest is {microbatches - left}"
        )
    return None

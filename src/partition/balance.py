"""Balance stages: choose boundaries between operations that give every stage its share.

`best` minimises the cost of the costliest stage by dynamic programming, exactly:

    best(s, j) = min over i < j of max(best(s - 1, i), cost(s, i, j))

is the costliest of s stages that hold the first j operations, cost(s, i, j) that of stage s with
operations i to j - 1. Among cuts whose costliest stage is equally cheap, the one that sends least wins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from src.config import ConfigError

# What a cut where the model's authors would cut may cost more than the best one.
PREFERENCE = 0.05


@dataclass(frozen=True)
class Problem:
    """A balancing problem: the costs of n operations, of the boundaries between them, and the stages to fill.

    Attributes:
        cost: of each operation, in any unit, [n].
        crossing: cost of each boundary in the same unit, for both stages that it joins, [n + 1].
        sent: bytes that cross each boundary, [n + 1].
        weights: bytes of each operation's weights, gradients and optimizer state, [n].
        kept: bytes that each operation keeps for backward of one micro-batch, [n].
        speeds: of the stages' devices; a cost is divided by it.
        in_flight: micro-batches whose kept bytes each stage holds at once.
        limit: bytes of memory of each device, `None` without a limit.
        copies: how often each stage holds `weights`; empty where all do once.
        weighted: whether each stage needs weights, as one that is to be sharded.
        sums: cumulative sums of arrays by name, filled when they are first used.
    """

    cost: np.ndarray
    crossing: np.ndarray
    sent: np.ndarray
    weights: np.ndarray
    kept: np.ndarray
    speeds: Sequence[float]
    in_flight: Sequence[int]
    limit: float | None = None
    copies: Sequence[float] = ()
    weighted: bool = False
    sums: dict[str, np.ndarray] = field(default_factory=dict)

    def stage_cost(self, stage: int, start: int, stop: int) -> float:
        """Return the cost of stage `stage` with operations `start` to `stop` - 1; infinite over the limit."""
        if self.limit is not None and self.memory(stage, start, stop) > self.limit:
            return np.inf
        cost = self.cumulative("cost")
        return (cost[stop] - cost[start]) / self.speeds[stage] + self.crossing[start] + self.crossing[stop]

    def memory(self, stage: int, start: Any, stop: Any) -> Any:
        """Return the bytes of memory that stage `stage` needs for operations `start` to `stop` - 1.

        Of arrays of both the bytes are an array.
        """
        weights, kept = self.cumulative("weights"), self.cumulative("kept")
        copies = self.copies[stage] if self.copies else 1
        return copies * (weights[stop] - weights[start]) + self.in_flight[stage] * (kept[stop] - kept[start])

    def cumulative(self, name: str) -> np.ndarray:
        """Return the sums [n + 1] of field `name` over the operations before each boundary."""
        if name not in self.sums:
            self.sums[name] = np.concatenate([[0.0], np.cumsum(getattr(self, name), dtype=float)])
        return self.sums[name]

    @property
    def stages(self) -> int:
        """Return the number of stages."""
        return len(self.speeds)


def costliest(problem: Problem, boundaries: Sequence[int]) -> float:
    """Return the cost of the costliest stage of a cut, given by its inner boundaries."""
    ends = [0, *boundaries, len(problem.cost)]
    return max(problem.stage_cost(s, a, b) for s, (a, b) in enumerate(itertools.pairwise(ends)))


def best(problem: Problem, preferred: Sequence[int] = ()) -> list[int]:
    """Find the inner boundaries of the best cut.

    One at `preferred` boundaries alone is taken where its costliest stage costs at most `PREFERENCE` more.

    Raises:
        ConfigError: when there are more stages than operations, or no cut fits in memory or gives each stage
            the weights that it needs.
    """
    count, stages = len(problem.cost), problem.stages
    check_stages(count, stages)
    table = _costs(problem)
    bound, _ = _search(lambda s, i, j: table[s][i, j], np.maximum, count, stages)
    if not np.isfinite(bound):
        if problem.weighted and np.count_nonzero(problem.weights) < stages:
            raise ConfigError(
                f"strategy.pipeline={stages}: a stage without parameters can't be sharded, and only "
                f"{np.count_nonzero(problem.weights)} of the model's operations have some; use fewer stages"
            )
        least, limit = _least_memory(problem), problem.limit
        assert limit is not None, "without a limit every cut fits"
        raise ConfigError(
            f"strategy.memory_gib={limit / 2**30:g}: the model needs {least / 2**30:.2f} GiB a "
            f"device even at the best cut into {stages} stages; use more workers, a smaller batch, or "
            "strategy.recompute=full"
        )
    within = [np.where(costs <= bound * (1 + 1e-12), 0.0, np.inf) for costs in table]
    _, cut = _search(lambda s, i, j: within[s][i, j] + problem.sent[j] * (j < count), np.add, count, stages)
    chosen = [False, *(place in preferred for place in range(1, count)), False]
    if sum(chosen) < stages - 1:
        return cut
    between = np.where(chosen, 0.0, np.inf)
    between[[0, count]] = 0.0
    own = [costs + between[:, None] + between[None, :] for costs in table]
    bound_there, cut_there = _search(lambda s, i, j: own[s][i, j], np.maximum, count, stages)
    return cut_there if bound_there <= bound * (1 + PREFERENCE) else cut


def _costs(problem: Problem) -> list[np.ndarray]:
    """Tabulate cost(s, i, j) as one array [n + 1, n + 1] a stage; infinite unless i < j."""
    total, weights = (problem.cumulative(name) for name in ("cost", "weights"))
    places = np.arange(len(total))
    forward = np.triu(np.ones((len(total), len(total)), dtype=bool), 1)
    tables = []
    for stage, speed in enumerate(problem.speeds):
        cost = (total[None, :] - total[:, None]) / speed
        cost = cost + problem.crossing[:, None] + problem.crossing[None, :]
        fits = forward
        if problem.weighted:
            fits = forward & (weights[None, :] > weights[:, None])
        if problem.limit is not None:
            fits = fits & (problem.memory(stage, places[:, None], places[None, :]) <= problem.limit)
        tables.append(np.where(fits, cost, np.inf))
    return tables


def _search(
    step: Callable[[int, np.ndarray, int], np.ndarray],
    join: Callable[[np.ndarray, np.ndarray], np.ndarray],
    count: int,
    stages: int,
) -> tuple[float, list[int]]:
    """Solve this module's recurrence with `join` for max; return the value and the boundaries with it."""
    value = np.full(count + 1, np.inf)
    value[0] = 0.0
    choices = []
    for stage in range(stages):
        new, choice = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
        for stop in range(1, count + 1):
            starts = np.arange(stop)
            candidates = join(value[:stop], step(stage, starts, stop))
            choice[stop] = int(np.argmin(candidates))
            new[stop] = candidates[choice[stop]]
        value = new
        choices.append(choice)
    cut, place = [], count
    for choice in reversed(choices[1:]):
        place = int(choice[place])
        cut.append(place)
    return float(value[count]), cut[::-1]


def _least_memory(problem: Problem) -> float:
    least, _ = _search(problem.memory, np.maximum, len(problem.cost), problem.stages)
    return least


def by_share(count: int, shares: Sequence[float]) -> list[int]:
    """Return the boundaries at round(count x cumulative share): `count` operations cut by `shares`.

    Paper 4's [140, 230] gives the first stage 140 / 370 of the operations.

    Raises:
        ConfigError: when a share is too small for one operation.
    """
    check_stages(count, len(shares))
    total = sum(shares)
    cut = [round(count * done / total) for done in itertools.accumulate(shares)][:-1]
    if any(b <= a for a, b in itertools.pairwise([0, *cut, count])):
        raise ConfigError(
            f"strategy.partition={list(shares)}: leaves a stage without an operation; "
            f"the model has {count} of them"
        )
    return cut


def check_stages(count: int, stages: int, key: str = "workers", further: str = "") -> None:
    """Raise `ConfigError` unless every stage can have an operation.

    Args:
        count: of operations.
        stages: how many stages there are to be.
        key: the one that says so.
        further: what else may be chosen, as the sentence's end.
    """
    if stages > count:
        raise ConfigError(
            f"{key}={stages}: the model can be cut into at most {count} stages, one operation each; "
            f"choose {key}={count}{further}"
        )

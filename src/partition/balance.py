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

# By stage, values [places, places] by where it begins and ends.
Tables = Callable[[int], np.ndarray]

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
        again: whether activations are computed again, and `in_flight` is of that.
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
    again: bool = False
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
    costs = _tabulated(problem, _costs)
    bound, _ = _search(costs, stages, np.maximum)
    if not np.isfinite(bound):
        if problem.weighted and np.count_nonzero(problem.weights) < stages:
            raise ConfigError(
                f"strategy.pipeline={stages}: a stage without parameters can't be sharded, and only "
                f"{np.count_nonzero(problem.weights)} of the model's operations have some; use fewer stages"
            )
        raise too_little(problem, _search(_tabulated(problem, _memory), stages, np.maximum)[0])

    def sent(stage: int) -> np.ndarray:
        last = problem.sent * (np.arange(count + 1) < count)
        return np.where(costs(stage) <= bound * (1 + 1e-12), last[None, :], np.inf)

    _, cut = _search(_tabulated(problem, lambda _, stage: sent(stage)), stages, np.add)
    chosen = np.array([True, *(place in preferred for place in range(1, count)), True])
    if chosen.sum() - 2 < stages - 1:
        return cut
    bound_there, cut_there = _search(_tabulated(problem, _costs, np.flatnonzero(chosen)), stages, np.maximum)
    places = np.flatnonzero(chosen)[cut_there]
    return [int(place) for place in places] if bound_there <= bound * (1 + PREFERENCE) else cut


def gib(size: float) -> str:
    """Return bytes in GiB, as text with two digits at least."""
    value = size / 2**30
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def too_little(problem: Problem, least: float) -> ConfigError:
    """Return the mistake of a model that needs `least` bytes on some device, at the best cut."""
    assert problem.limit is not None, "without a limit every cut fits"
    advice = "more workers, a smaller batch, or strategy.recompute=full"
    if problem.again:
        advice = "more workers or a smaller batch"
    return ConfigError(
        f"strategy.memory_gib={problem.limit / 2**30:g}: the model needs {gib(least)} GiB a "
        f"device even at the best cut into {problem.stages} stages; use {advice}"
    )


def _tabulated(
    problem: Problem, function: Callable[[Problem, int], np.ndarray], places: np.ndarray | None = None
) -> Tables:
    """Return the tables of a function of (problem, stage), at all boundaries or `places`.

    Stages that are alike share one table.
    """
    known: dict[Any, np.ndarray] = {}

    def of(stage: int) -> np.ndarray:
        held = (problem.in_flight[stage], problem.copies[stage] if problem.copies else 1)
        key = problem.speeds[stage], held if problem.limit is not None else None
        if key not in known:
            whole = function(problem, stage)
            known[key] = whole if places is None else whole[np.ix_(places, places)]
        return known[key]

    return of


def _costs(problem: Problem, stage: int) -> np.ndarray:
    """Tabulate cost(s, i, j) of a stage s as an array [n + 1, n + 1]; infinite unless i < j."""
    total, weights = (problem.cumulative(name) for name in ("cost", "weights"))
    fits = _forward(problem)
    cost = (total[None, :] - total[:, None]) / problem.speeds[stage]
    cost += problem.crossing[:, None]
    cost += problem.crossing[None, :]
    if problem.weighted:
        fits = fits & (weights[None, :] > weights[:, None])
    if problem.limit is not None:
        places = np.arange(len(total))
        fits = fits & (problem.memory(stage, places[:, None], places[None, :]) <= problem.limit)
    return np.where(fits, cost, np.inf)


def _memory(problem: Problem, stage: int) -> np.ndarray:
    """Tabulate the bytes that a stage needs, as `_costs` its cost."""
    places = np.arange(len(problem.cost) + 1)
    return np.where(_forward(problem), problem.memory(stage, places[:, None], places[None, :]), np.inf)


def _forward(problem: Problem) -> np.ndarray:
    count = len(problem.cost) + 1
    return np.triu(np.ones((count, count), dtype=bool), 1)


def _search(
    tables: Tables, stages: int, join: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[float, list[int]]:
    """Solve this module's recurrence with `join` for max; return the value and the boundaries with it."""
    value, choices = tables(0)[0], []
    for stage in range(1, stages):
        candidates = join(value[:, None], tables(stage))
        choice = candidates.argmin(axis=0)
        value = candidates[choice, np.arange(len(choice))]
        choices.append(choice)
    cut, place = [], len(value) - 1
    for choice in reversed(choices):
        place = int(choice[place])
        cut.append(place)
    return float(value[-1]), cut[::-1]


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

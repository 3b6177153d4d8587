"""Where to cut: boundaries between operations that give every stage its share.

All methods but a given list minimise the costliest stage by dynamic programming, exactly:

    best(s, j) = min over i < j of max(best(s - 1, i), cost(s, i, j))

is the costliest of s stages that hold the first j operations, cost(s, i, j) that of stage s with
operations i to j - 1. Among cuts whose costliest stage is equally cheap, the one that sends least wins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from src.config import ConfigError


@dataclass(frozen=True)
class Problem:
    """What stages may cost; arrays are by operation [n] or by boundary [n + 1].

    `cost` is any unit; `crossing` is in the same unit and counts for both stages that it joins.
    `memory` of a stage (bytes) is `weights` + `kept` of its operations x micro-batches in flight.
    """

    cost: np.ndarray
    crossing: np.ndarray
    sent: np.ndarray
    weights: np.ndarray
    kept: np.ndarray
    speeds: Sequence[float]
    in_flight: Sequence[int]
    limit: float | None = None
    sums: dict[str, np.ndarray] = field(default_factory=dict)

    def stage_cost(self, stage: int, start: int, stop: int) -> float:
        """Cost of operations `start` to `stop` - 1 as stage `stage`; infinite where memory is short."""
        if self.limit is not None and self.memory(stage, start, stop) > self.limit:
            return np.inf
        own = self._sum("cost")[stop] - self._sum("cost")[start]
        return own / self.speeds[stage] + self.crossing[start] + self.crossing[stop]

    def memory(self, stage: int, start: int, stop: int) -> float:
        """Bytes of weights, gradients and optimizer state, and of what backward keeps."""
        weights = self._sum("weights")[stop] - self._sum("weights")[start]
        return weights + self.in_flight[stage] * (self._sum("kept")[stop] - self._sum("kept")[start])

    def _sum(self, name: str) -> np.ndarray:
        if name not in self.sums:
            self.sums[name] = np.concatenate([[0.0], np.cumsum(getattr(self, name), dtype=float)])
        return self.sums[name]

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.speeds)


def costliest(problem: Problem, boundaries: Sequence[int]) -> float:
    """The costliest stage of a cut, given by its inner boundaries."""
    ends = [0, *boundaries, len(problem.cost)]
    return max(problem.stage_cost(s, a, b) for s, (a, b) in enumerate(itertools.pairwise(ends)))


def best(problem: Problem) -> list[int]:
    """The inner boundaries of the best cut.

    Raises:
        ConfigError: when no cut fits in memory.
    """
    count, stages = len(problem.cost), problem.stages
    check_stages(count, stages)
    table = _costs(problem)
    bound, _ = _search(table, lambda s, i, j: table[s][i, j], np.maximum, count, stages)
    if not np.isfinite(bound):
        least = _least_memory(problem)
        raise ConfigError(
            f"strategy.memory_gib={problem.limit / 2**30:g}: the model needs {least / 2**30:.2f} GiB a "
            f"device even at the best cut into {stages} stages; use more workers, a smaller batch, or "
            "strategy.checkpoint=always"
        )
    within = [np.where(costs <= bound * (1 + 1e-12), 0.0, np.inf) for costs in table]
    _, cut = _search(
        within, lambda s, i, j: within[s][i, j] + problem.sent[j] * (j < count), np.add, count, stages
    )
    return cut


def _costs(problem: Problem) -> list[np.ndarray]:
    """cost(s, i, j) as one array [n + 1, n + 1] a stage; infinite unless i < j."""
    total, weights, kept = (problem._sum(name) for name in ("cost", "weights", "kept"))
    forward = np.triu(np.ones((len(total), len(total)), dtype=bool), 1)
    found = []
    for speed, in_flight in zip(problem.speeds, problem.in_flight, strict=True):
        cost = (total[None, :] - total[:, None]) / speed
        cost = cost + problem.crossing[:, None] + problem.crossing[None, :]
        fits = forward
        if problem.limit is not None:
            memory = weights[None, :] - weights[:, None] + in_flight * (kept[None, :] - kept[:, None])
            fits = forward & (memory <= problem.limit)
        found.append(np.where(fits, cost, np.inf))
    return found


def _search(
    table: list[np.ndarray],
    step: Callable[[int, np.ndarray, int], np.ndarray],
    join: Callable[[np.ndarray, np.ndarray], np.ndarray],
    count: int,
    stages: int,
) -> tuple[float, list[int]]:
    """The recurrence above with `join` for max; the value, and the boundaries that reach it."""
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
    nothing = np.zeros(len(problem.cost) + 1)
    memory = problem._sum("weights") + max(problem.in_flight) * problem._sum("kept")
    free = Problem(
        cost=np.diff(memory),
        crossing=nothing,
        sent=nothing,
        weights=problem.weights,
        kept=problem.kept,
        speeds=[1.0] * problem.stages,
        in_flight=problem.in_flight,
    )
    return costliest(free, best(free))


def by_share(count: int, shares: Sequence[float]) -> list[int]:
    """Boundary = round(operations x cumulative share): paper 4's [140, 230] gives the first stage 140 / 370.

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


def check_stages(count: int, stages: int) -> None:
    """Raises `ConfigError` unless every stage can have an operation."""
    if stages > count:
        raise ConfigError(
            f"workers={stages}: the model can be cut into at most {count} stages, one operation each; "
            f"choose workers={count}"
        )

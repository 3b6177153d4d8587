"""Cut a model for devices with several stages each: the step that is simulated is to be the shortest.

What a device computes in all of its stages, where they lie, what waits for what and what crosses the links is
all in the simulation. Where there are few cuts all of them are simulated; else the best is looked for from
the one whose costliest stage is cheapest, boundary by boundary, until none moves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from src.config.schedules import SCHEDULES
from src.partition import balance
from src.partition.balance import PREFERENCE, Problem
from src.partition.schedules import simulation, tables

# All cuts are simulated where there are no more, so many at once.
EXHAUSTIVE, AT_ONCE = 100_000, 10_000
# Where there are so few boundaries, any two move at once, one moves to any of so many places, and there are
# further starts.
FEW, LINE, STARTS = 8, 500, 4
# Each round simulates all moves; most searches end much earlier.
ROUNDS = 25
# A long step of many stages has the same bottleneck as one in which a device does so many stages' passes.
PASSES = 4


@dataclass(frozen=True)
class Step:
    """The step of a cut model under a schedule.

    Attributes:
        problem: costs of operations, boundaries and memory, speeds of stages, and a device's limit.
        schedule: by its name.
        devices: the device of each stage.
        microbatches: of a step.
        passes: seconds of forward, input- and weight-backward passes of each operation, [operations] each.
        sent, sent_back: seconds that a boundary's tensors, and their gradients, take, [operations + 1].
    """

    problem: Problem
    schedule: str
    devices: Sequence[int]
    microbatches: int
    passes: tuple[np.ndarray, np.ndarray, np.ndarray]
    sent: np.ndarray
    sent_back: np.ndarray

    def seconds(self, cuts: np.ndarray, microbatches: int | None = None) -> np.ndarray:
        """Return the simulated seconds [cuts] of a step of so many micro-batches, by default its own.

        `cuts` are inner boundaries [cuts, stages - 1].
        """
        ranks = 1 + max(self.devices)
        virtual = len(self.devices) // ranks
        count = self.microbatches if microbatches is None else microbatches
        ends = self._ends(cuts)
        sums = (np.concatenate([[0.0], np.cumsum(each)]) for each in self.passes)
        forward, for_inputs, for_weights = (
            (each[ends[:, 1:]] - each[ends[:, :-1]]) / np.array(self.problem.speeds) for each in sums
        )
        # Nobody waits for gradients of the model's inputs: the first stage's whole pass is one for weights.
        first = np.arange(forward.shape[-1]) == 0
        costs = simulation.Costs(
            forward=forward,
            input_backward=np.where(first, 0.0, for_inputs),
            weight_backward=np.where(first, for_inputs + for_weights, for_weights),
            sent=self.sent[cuts],
            sent_back=self.sent_back[cuts],
        )
        order = tables.table(self.schedule, ranks, virtual, count)
        placement = SCHEDULES[self.schedule].placement
        return simulation.simulate(order, placement, costs).step_seconds

    def excess(self, cuts: np.ndarray) -> np.ndarray:
        """Return the bytes [cuts] by which the fullest device is above the limit, 0 where all fit."""
        if self.problem.limit is None:
            return np.zeros(len(cuts))
        return np.maximum(0.0, self.memory(cuts) - self.problem.limit)

    def memory(self, cuts: np.ndarray) -> np.ndarray:
        """Return the bytes [cuts] that the fullest device needs."""
        ends = self._ends(cuts)
        held = np.zeros((len(cuts), 1 + max(self.devices)))
        for stage, device in enumerate(self.devices):
            held[:, device] += self.problem.memory(stage, ends[:, stage], ends[:, stage + 1])
        most: np.ndarray = held.max(axis=1)
        return most

    def _ends(self, cuts: np.ndarray) -> np.ndarray:
        first, last = np.zeros((len(cuts), 1), dtype=int), np.full((len(cuts), 1), len(self.problem.cost))
        return np.concatenate([first, cuts, last], axis=1)


def best(step: Step, preferred: Sequence[int] = ()) -> list[int]:
    """Find the inner boundaries of the cut with the shortest step.

    One at `preferred` boundaries alone is taken where its step takes at most `PREFERENCE` longer.

    Raises:
        ConfigError: when there are more stages than operations, or no cut was found that fits in memory.
    """
    count, stages = len(step.problem.cost), len(step.devices)
    balance.check_stages(count, stages)
    cut, seconds = _search(step, np.arange(1, count), balance.best(replace(step.problem, limit=None)))
    if step.excess(cut[None])[0] > 0:
        raise balance.too_little(step.problem, float(step.memory(cut[None])[0]))
    places = np.array(sorted(set(preferred) & set(range(1, count))))
    if len(places) >= stages - 1:
        start = balance.best(replace(step.problem, limit=None), [int(each) for each in places])
        if not set(start) <= set(places.tolist()):
            start = [int(each) for each in places[np.linspace(0, len(places) - 1, stages - 1).astype(int)]]
        there, taken = _search(step, places, start)
        if taken <= seconds * (1 + PREFERENCE) and step.excess(there[None])[0] == 0:
            cut = there
    return [int(each) for each in cut]


def _search(step: Step, places: np.ndarray, start: Sequence[int]) -> tuple[np.ndarray, float]:
    """Return the best cut found at some `places`, and its step's seconds.

    What fits into memory is better than what doesn't, and then what is quicker.
    """
    inner = len(start)
    if math.comb(len(places), inner) <= EXHAUSTIVE:
        every = np.array(list(itertools.combinations(places, inner))).reshape(-1, inner)
        parts = np.array_split(every, math.ceil(len(every) / AT_ONCE))
        worth = np.concatenate([step.seconds(part) for part in parts])
        chosen = np.lexsort((worth, step.excess(every)))[0]
        return every[chosen], float(worth[chosen])
    random = np.random.default_rng(0)
    # The position of each boundary among the places.
    begun = np.searchsorted(places, np.array(start))
    starts = [begun, *(np.sort(random.choice(len(places), inner, replace=False)) for _ in range(STARTS))]
    found = [_descend(step, places, each) for each in starts[: None if inner <= FEW else 1]]
    (_, seconds), best_place = min(found, key=lambda each: each[0])
    return places[best_place], seconds


def _descend(step: Step, places: np.ndarray, now: np.ndarray) -> tuple[tuple[float, float], np.ndarray]:
    """Move boundaries, which have positions among the `places`, until no move makes the cut better.

    Returned are the bytes above the limit and the seconds of the step, and the positions.
    """
    devices, count = 1 + max(step.devices), step.microbatches
    if len(now) > FEW:
        count = min(count, devices * max(1, PASSES * devices // len(step.devices)))
    value = (np.inf, np.inf)
    one, two = _moves(len(now), len(places))
    for _ in range(ROUNDS):
        for moves in (one, two):
            tried = np.concatenate([now[None], now + moves])
            inside = (tried[:, 0] >= 0) & (tried[:, -1] < len(places))
            tried = tried[inside & (np.diff(tried, axis=1) > 0).all(axis=1)]
            cuts = places[tried]
            worth, excess = step.seconds(cuts, count), step.excess(cuts)
            chosen = np.lexsort((worth, excess))[0]
            found = float(excess[chosen]), float(worth[chosen])
            if found < value:
                break
        else:
            break
        now, value = tried[chosen], found
    return (value[0], float(step.seconds(places[now][None])[0])), now


def _moves(inner: int, places: int) -> list[np.ndarray]:
    """Return the moves of one boundary, and of a few boundaries those of two by a few places each.

    Of many boundaries among many places they are by 1, 2, 4 and so on alone.
    """
    unit = np.eye(inner, dtype=int)
    few = inner <= FEW
    sizes = range(1, places) if few and places <= LINE else [2**each for each in range(places.bit_length())]
    far = [sign * size for size in sizes for sign in (1, -1)]
    one = [size * unit[which] for which in range(inner) for size in far]
    near = [-3, -2, -1, 1, 2, 3] if few else []
    two = [
        here * unit[first] + there * unit[second]
        for first, second in itertools.combinations(range(inner), 2)
        for here, there in itertools.product(near, repeat=2)
    ]
    return [np.array(one), np.array(two, dtype=int).reshape(-1, inner)]

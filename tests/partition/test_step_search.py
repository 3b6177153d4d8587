"""Cuts for devices with several stages each, against every other cut, on drawn and on hand-made costs."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from src.config import ConfigError
from src.config.schedules import SCHEDULES
from src.partition import step_search
from src.partition.balance import Problem
from src.partition.schedules import simulation, tables
from src.partition.step_search import Step


def drawn(
    count: int,
    schedule: str,
    ranks: int,
    virtual: int,
    microbatches: int,
    seed: int,
    limit: float | None = None,
) -> Step:
    random = np.random.default_rng(seed)
    crossing = np.concatenate([[0.0], random.random(count - 1) / 50, [0.0]])
    passes = tuple(random.exponential(1, count) for _ in range(3))
    stages, placement = ranks * virtual, SCHEDULES[schedule].placement
    problem = Problem(
        cost=sum(passes),
        crossing=2 * crossing,
        sent=crossing,
        weights=random.random(count),
        kept=random.random(count),
        speeds=[1.0 + stage % 2 for stage in range(stages)],
        in_flight=[1 + stage % 3 for stage in range(stages)],
        limit=limit,
    )
    devices = [placement.rank(stage, ranks) for stage in range(stages)]
    return Step(problem, schedule, devices, microbatches, passes, crossing, crossing / 2)


def step_seconds(step: Step, cut: tuple[int, ...]) -> float:
    """Of one cut, whose stages are summed up by themselves."""
    ends = [0, *cut, len(step.problem.cost)]
    forward, for_inputs, for_weights = (
        np.array(
            [each[a:b].sum() / step.problem.speeds[s] for s, (a, b) in enumerate(itertools.pairwise(ends))]
        )
        for each in step.passes
    )
    # The first stage sends no gradients, and does all of its backward pass for its weights.
    for_weights[0] += for_inputs[0]
    for_inputs[0] = 0
    costs = simulation.Costs(
        forward=forward,
        input_backward=for_inputs,
        weight_backward=for_weights,
        sent=np.array([step.sent[place] for place in cut]),
        sent_back=np.array([step.sent_back[place] for place in cut]),
    )
    ranks = 1 + max(step.devices)
    order = tables.table(step.schedule, ranks, len(step.devices) // ranks, step.microbatches)
    return float(simulation.simulate(order, SCHEDULES[step.schedule].placement, costs).step_seconds)


def memory(step: Step, cut: tuple[int, ...]) -> float:
    """What the fullest device holds."""
    ends, held = [0, *cut, len(step.problem.cost)], [0.0] * (1 + max(step.devices))
    for stage, device in enumerate(step.devices):
        part = slice(ends[stage], ends[stage + 1])
        held[device] += step.problem.weights[part].sum()
        held[device] += step.problem.in_flight[stage] * step.problem.kept[part].sum()
    return max(held)


def every(step: Step) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(1, len(step.problem.cost)), len(step.devices) - 1))


CASES = [("interleaved", 2), ("zbv", 2), ("zero_bubble", 2), ("dualpipe_v", 2), ("looped_bfs", 3)]


@pytest.mark.parametrize(("schedule", "virtual"), CASES)
def test_the_best_cut_is_that_of_all_cuts(schedule: str, virtual: int) -> None:
    for seed in range(3):
        step = drawn(9, schedule, 2, virtual, 4, seed)
        least = min(step_seconds(step, cut) for cut in every(step))
        assert step_seconds(step, tuple(step_search.best(step))) == pytest.approx(least, rel=1e-12)


def test_what_is_searched_for_is_nearly_always_the_best_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = []
    for seed, (schedule, virtual) in itertools.product(range(4), CASES[:4]):
        step = drawn(20, schedule, 2, virtual, 8, seed)
        best = step_seconds(step, tuple(step_search.best(step)))
        with monkeypatch.context() as patched:
            patched.setattr(step_search, "EXHAUSTIVE", 0)
            ratios.append(step_seconds(step, tuple(step_search.best(step))) / best)
    assert max(ratios) < 1.05
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 0.9 * len(ratios)


def test_a_device_is_as_busy_as_all_of_its_stages() -> None:
    """Of three heavy operations no two are on one device of a V."""
    cost = np.array([6.0, 1, 1, 6, 1, 1, 6, 1])
    zeros = np.zeros(9)
    problem = Problem(
        cost=cost, crossing=zeros, sent=zeros, weights=cost, kept=cost, speeds=[1.0] * 6, in_flight=[1] * 6
    )
    devices = [0, 1, 2, 2, 1, 0]
    step = Step(problem, "zbv", devices, 12, (cost / 3,) * 3, zeros, zeros)
    cut = step_search.best(step)
    ends = [0, *cut, 8]
    loads = [
        sum(cost[ends[stage] : ends[stage + 1]].sum() for stage in range(6) if devices[stage] == device)
        for device in range(3)
    ]
    assert max(loads) == 8


@pytest.mark.parametrize("seed", range(3))
def test_what_fits_is_preferred_and_nothing_else_is_taken(seed: int) -> None:
    free = drawn(9, "zbv", 2, 2, 4, seed)
    taken = memory(free, tuple(step_search.best(free)))
    least = min(memory(free, cut) for cut in every(free))
    limit = (least + taken) / 2 if least < taken else least
    step = drawn(9, "zbv", 2, 2, 4, seed, limit)
    fitting = [cut for cut in every(step) if memory(step, cut) <= limit * (1 + 1e-12)]
    best = tuple(step_search.best(step))
    assert best in fitting
    assert step_seconds(step, best) == pytest.approx(min(step_seconds(step, cut) for cut in fitting))
    with pytest.raises(ConfigError, match="even at the best cut into 4 stages"):
        step_search.best(drawn(9, "zbv", 2, 2, 4, seed, 0.9 * least))


def test_the_authors_boundaries_are_taken_where_they_cost_little() -> None:
    step = drawn(12, "interleaved", 2, 2, 4, 0)
    best = step_search.best(step)
    assert step_search.best(step, [1, *best]) == best
    ones = drawn(12, "interleaved", 2, 2, 4, 0)
    apart = step_search.best(ones, [1, 2, 3])
    assert (apart == [1, 2, 3]) == (step_seconds(ones, (1, 2, 3)) <= 1.05 * step_seconds(ones, tuple(best)))


@pytest.mark.parametrize("schedule", ["interleaved", "zbv"])
def test_a_thousand_operations_for_sixteen_devices(schedule: str) -> None:
    """In a second on a core of its own, of which a busy machine makes a few."""
    step = drawn(1000, schedule, 16, 2, 64, 0)
    began = time.process_time()
    cut = step_search.best(step)
    assert time.process_time() - began < 4
    assert len(set(cut)) == 31
    even = tuple(int(each) for each in np.linspace(0, 1000, 33)[1:-1])
    assert step_seconds(step, tuple(cut)) < 0.95 * step_seconds(step, even)

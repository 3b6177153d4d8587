"""Simulated steps are those of the papers' own figures, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from src.config.schedules import SCHEDULES
from src.partition.schedules.actions import Action, Kind
from src.partition.schedules.simulation import Costs, Simulated, simulate
from src.partition.schedules.tables import table

STAGES = 4


def step(name: str, microbatches: int, backward: float) -> Simulated:
    """A step of four stages that take one second forward, and so many backward."""
    ones = np.ones(STAGES)
    costs = Costs(forward=ones, input_backward=ones * backward / 2, weight_backward=ones * backward / 2)
    return simulate(table(name, STAGES, 1, microbatches), SCHEDULES[name].placement, costs)


def begins(found: Simulated, rank: int) -> dict[Action, float]:
    return dict(zip(found.table[rank], found.start[rank].tolist(), strict=True))


def test_gpipe_s_figure_two() -> None:
    # Huang 2019, figure 2c: four accelerators, four micro-batches; F(k, m) begins when k + m passes are done.
    found = step("gpipe", 4, backward=1.0)
    for rank in range(STAGES):
        for number in range(4):
            assert begins(found, rank)[Action(rank, Kind.FORWARD, number)] == rank + number
    # Backward passes follow one after the other, last stage first; their order is torch's, not the figure's.
    assert sorted(begins(found, 3).values()) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert sorted(begins(found, 0).values()) == [0, 1, 2, 3, 10, 11, 12, 13]
    # Section 2.3: the bubble is (K - 1) / (M + K - 1) of the step.
    assert found.step_seconds == 2 * (4 + 4 - 1)
    assert found.bubble_fraction == pytest.approx(3 / 7)


def test_one_forward_one_backward_of_eight_micro_batches() -> None:
    # Narayanan 2021 (Megatron-LM), figure 4: backward passes take twice as long as forward passes.
    found = step("1f1b", 8, backward=2.0)
    first, last = begins(found, 0), begins(found, 3)
    # The last stage begins a micro-batch every three seconds, and passes it back at once.
    for number in range(8):
        assert last[Action(3, Kind.FORWARD, number)] == 3 + 3 * number
        assert last[Action(3, Kind.BACKWARD, number)] == 4 + 3 * number
        # Three stages further down the gradients come two seconds later each.
        assert first[Action(0, Kind.BACKWARD, number)] == 10 + 3 * number
    # Four micro-batches fill the pipeline; the first stage then waits for the first gradients.
    assert [first[Action(0, Kind.FORWARD, number)] for number in range(8)] == [0, 1, 2, 3, 12, 15, 18, 21]
    assert found.step_seconds == (8 + 4 - 1) * 3
    assert found.bubble_fraction == pytest.approx(3 / 11)


def test_pipedream_s_steady_state() -> None:
    # Narayanan 2019 (PipeDream), figure 8: once full, each worker does one forward and one backward pass in
    # turn, and none is idle: between the first stage's gradients lies one micro-batch's work.
    found = step("1f1b", 16, backward=2.0)
    for rank in range(STAGES):
        own = found.table[rank][STAGES - rank : 2 * 16 - (STAGES - rank)]
        kinds = [action.kind for action in own]
        assert kinds == [Kind.BACKWARD, Kind.FORWARD] * (len(own) // 2)
    first = begins(found, 0)
    gaps = np.diff([first[Action(0, Kind.BACKWARD, number)] for number in range(16)])
    assert gaps.tolist() == [3.0] * 15

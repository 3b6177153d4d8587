"""Seconds of passes are read back from a timeline, and give the step that it is of."""

from __future__ import annotations

import numpy as np
import pytest

from bench import schedules
from bench.schedules import Run
from src.config.schedules import SCHEDULES
from src.measure import timeline
from src.partition.schedules import simulation, tables
from src.partition.schedules.actions import Kind


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_timeline_gives_back_the_costs_it_was_made_of(name: str) -> None:
    virtual = SCHEDULES[name].virtual[2]
    stages = 2 * virtual
    costs = simulation.Costs(
        forward=np.arange(1.0, 1 + stages),
        input_backward=np.arange(0.5, 0.5 + stages),
        weight_backward=np.arange(2.0, 2 + stages),
        optimizer=3.0,
    )
    order = tables.table(name, 2, virtual, 8)
    made = simulation.simulate(order, SCHEDULES[name].placement, costs)
    events = timeline.chrome_trace(made.timelines())["traceEvents"]
    cut = {"stages": [{}] * stages}
    run = Run(name, 8, {"cut": cut, "timeline": [event for event in events if event["ph"] == "X"]})
    passes, update = run.passes()
    assert update == pytest.approx(3)
    for stage in range(stages):
        assert passes[stage, Kind.FORWARD] == pytest.approx(1 + stage)
        parts = [passes.get((stage, kind)) for kind in (Kind.INPUT_BACKWARD, Kind.WEIGHT_BACKWARD)]
        wholes = {passes.get((stage, Kind.BACKWARD)), sum(parts) if all(parts) else None} - {None}
        # Some schedules have passes in parts of some micro-batches alone.
        assert wholes and all(whole == pytest.approx(2.5 + 2 * stage) for whole in wholes)
    again = run.simulated(passes, update)
    assert again.step_seconds == pytest.approx(made.step_seconds)
    assert again.bubble_fraction == pytest.approx(made.bubble_fraction)


def test_a_whole_pass_is_divided_as_in_the_schedules_own_run() -> None:
    own = {(0, Kind.INPUT_BACKWARD): 1.0, (0, Kind.WEIGHT_BACKWARD): 3.0}
    alone = {(0, Kind.FORWARD): 1.0, (0, Kind.BACKWARD): 2.0}
    divided = schedules._in_parts(alone, own)
    assert divided[0, Kind.INPUT_BACKWARD] == 0.5 and divided[0, Kind.WEIGHT_BACKWARD] == 1.5
    assert schedules._in_parts(alone, {}) == alone

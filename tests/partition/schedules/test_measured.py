"""Seconds of passes are read back from a timeline, and give the step that it is of."""

from __future__ import annotations

import numpy as np
import pytest

from src.config.schedules import SCHEDULES
from src.measure import timeline
from src.partition.schedules import simulation, tables
from src.partition.schedules.actions import Kind
from src.partition.schedules.measured import Schedule


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
    schedule = Schedule(name, 2, virtual, 8)
    passes, update = schedule.passes(event for event in events if event["ph"] == "X")
    assert update == pytest.approx(3)
    for stage in range(stages):
        assert passes[stage, Kind.FORWARD] == pytest.approx(1 + stage)
        parts = [passes.get((stage, kind)) for kind in (Kind.INPUT_BACKWARD, Kind.WEIGHT_BACKWARD)]
        wholes = {passes.get((stage, Kind.BACKWARD)), sum(parts) if all(parts) else None} - {None}
        # Some schedules have passes in parts of some micro-batches alone.
        assert wholes and all(whole == pytest.approx(2.5 + 2 * stage) for whole in wholes)
    again = schedule.simulated(passes, update)
    assert again.step_seconds == pytest.approx(made.step_seconds)
    assert again.bubble_fraction == pytest.approx(made.bubble_fraction)


def test_steps_that_were_not_recorded_whole_are_left_out() -> None:
    order = tables.table("gpipe", 2, 1, 2)
    ones = np.ones(2)
    costs = simulation.Costs(forward=ones, input_backward=ones, weight_backward=ones)
    made = simulation.simulate(order, SCHEDULES["gpipe"].placement, costs)
    events = [each for each in timeline.chrome_trace(made.timelines())["traceEvents"] if each["ph"] == "X"]
    schedule = Schedule("gpipe", 2, 1, 2)
    later = [{**each, "dur": 9e6, "args": {**each["args"], "step": 1}} for each in events[1:]]
    # Of the later step the first rank's first pass is missing.
    passes, _ = schedule.passes([*events, *later])
    assert passes[0, Kind.FORWARD] == 1 and passes[1, Kind.FORWARD] == 5
    with pytest.raises(ValueError, match="no step of gpipe was recorded"):
        schedule.passes(events[1:])

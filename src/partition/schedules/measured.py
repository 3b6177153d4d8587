"""Read from a run's timeline what each stage's passes took, and simulate the step that they would make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from src.config.schedules import SCHEDULES
from src.partition.schedules import simulation, tables
from src.partition.schedules.actions import Kind

PASSES = ("forward", "backward", "weight_backward")
# By (stage, kind): seconds of a pass.
Passes = Mapping[tuple[int, Kind], float]


@dataclass(frozen=True)
class Schedule:
    """A schedule as a run had it.

    Attributes:
        name: as `strategy.schedule` has it.
        ranks: of one copy of the model.
        virtual: stages of each rank.
        microbatches: of a step.
    """

    name: str
    ranks: int
    virtual: int
    microbatches: int

    def passes(self, events: Iterable[Mapping[str, Any]]) -> tuple[Passes, float]:
        """Return the median seconds of each stage's passes, and of the slowest rank's update.

        A rank's passes come in the order of the schedule's table, which says of which stage each is. A step
        of which a rank hasn't recorded all passes is left out; a loss is a part of its forward pass.

        Args:
            events: the complete ones of a `timeline.json`, times in microseconds.

        Raises:
            ValueError: where no step was recorded so.
        """
        rows: dict[tuple[int, int], list[list[float]]] = defaultdict(list)
        updates: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for event in events:
            rank, step, seconds = event["pid"], event["args"]["step"], event["dur"] / 1e6
            if event["cat"] == "optimizer":
                updates[rank][step] += seconds
            elif event["cat"] == "loss" and rows[rank, step]:
                rows[rank, step][-1][0] += seconds
            elif event["cat"] in PASSES:
                rows[rank, step].append([seconds])
        found: dict[tuple[int, Kind], list[float]] = defaultdict(list)
        orders = tables.table(self.name, self.ranks, self.virtual, self.microbatches)
        for (rank, _), own in rows.items():
            if rank < self.ranks and len(own) == len(orders[rank]):
                for action, (seconds,) in zip(orders[rank], own, strict=True):
                    found[action.stage, action.kind].append(seconds)
        if {stage for stage, _ in found} != set(range(self.ranks * self.virtual)):
            raise ValueError(f"no step of {self.name} was recorded with all of its passes")
        update = max((median(own.values()) for own in updates.values()), default=0.0)
        return {key: median(each) for key, each in found.items()}, update

    def simulated(self, passes: Passes, update: float) -> simulation.Simulated:
        """Simulate a step from the seconds of its passes, and of a rank's update, without transfers."""
        stages = range(self.ranks * self.virtual)

        def seconds(kind: Kind) -> np.ndarray:
            return np.array([passes.get((stage, kind), 0.0) for stage in stages])

        costs = simulation.Costs(
            forward=seconds(Kind.FORWARD),
            input_backward=seconds(Kind.INPUT_BACKWARD),
            weight_backward=seconds(Kind.WEIGHT_BACKWARD),
            backward=seconds(Kind.BACKWARD),
            optimizer=update,
        )
        order = tables.table(self.name, self.ranks, self.virtual, self.microbatches)
        return simulation.simulate(order, SCHEDULES[self.name].placement, costs)

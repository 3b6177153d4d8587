"""Simulate a step of stages whose passes take so long, by their schedule's own table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from src.config import Config
from src.config.schedules import SCHEDULES
from src.partition.plan import CutOptions
from src.partition.schedules import simulation, tables
from src.partition.schedules.simulation import Simulated


@dataclass(frozen=True)
class StageSeconds:
    """The seconds of passes, by stage, of updates, by device, and of transfers, by boundary."""

    forward: np.ndarray
    for_inputs: np.ndarray
    for_weights: np.ndarray
    update: np.ndarray
    sent: np.ndarray
    sent_back: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        """Return the seconds of each stage's passes of one micro-batch."""
        return self.forward + self.for_inputs + self.for_weights

    def simulated(self, config: Config) -> Simulated | None:
        """Simulate a run's step; `None` where it has no schedule."""
        schedule = CutOptions.of(config).schedule
        if schedule is None:
            return None
        # Nobody waits for gradients of the model's inputs: the first stage's whole pass is one for weights.
        first = np.arange(len(self.forward)) == 0
        table = tables.table(schedule, config.degrees.pipeline, config.virtual_stages, config.microbatches)
        costs = simulation.Costs(
            forward=self.forward,
            input_backward=np.where(first, 0.0, self.for_inputs),
            weight_backward=np.where(first, self.for_inputs + self.for_weights, self.for_weights),
            sent=self.sent,
            sent_back=self.sent_back,
            optimizer=self.update,
        )
        return simulation.simulate(table, SCHEDULES[schedule].placement, costs)

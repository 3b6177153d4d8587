"""Predict a step of a model of one's own on described devices, from its kernels and exchanges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from src.measure.kernels import Trace
from src.predict import network
from src.predict.constants import Constants
from src.predict.layout import Layout
from src.predict.program import Event, SimulatedStep
from src.predict.row import Row
from src.predict.step import Parts, expected_maximum
from src.predict.traced import costs, programs


@dataclass(frozen=True)
class TracedStep:
    """A step of which `parts` tells how long it takes by some constants.

    Attributes:
        row, layout: the configuration.
        trace: what one of its devices does.
    """

    row: Row
    layout: Layout
    trace: Trace

    def parts(self, constants: Constants, computing: float = 1.0, summing: float = 1.0) -> Parts:
        """Return the seconds by part.

        Args:
            constants: of the machine and its software.
            computing: how many times as long this model and machine compute as the constants say.
            summing: how many times as long as they say exchanges hold up what computes.
        """
        taken = costs.seconds(self.trace.kernels, self.layout.device, constants) * computing
        busy = float(taken.sum())
        computed, simulated = self._simulated(constants, taken)
        waits = computed * constants.straggling * expected_maximum(self.layout.replicas)
        exchange = summing * max(0.0, simulated.seconds - computed)
        # A device that its host holds up isn't made faster by more of what devices have.
        return Parts(busy + waits, exchange, 0.0, computed - busy + constants.loop_seconds)

    def _simulated(self, constants: Constants, taken: np.ndarray) -> tuple[float, SimulatedStep]:
        """Return the seconds until all has been computed, and a step with its exchanges.

        Args:
            constants: of the machine and its software.
            taken: the seconds of each kernel on the device.
        """
        program = programs.program(self.trace, taken, constants.host_seconds)
        # Sums of whole gradients hold a backward pass up more than the shards of one layer do.
        slowed = constants.shard_overlap if self.layout.shard > 1 else constants.exposed

        def seconds(event: Event) -> float:
            exchange = network.all_reduce if event.kind == "all_reduce" else network.gather
            return exchange(self.layout, event.ranks, event.stride, event.size, constants)

        return sum(program.computed), program.simulate(seconds, slowed=slowed)

"""Predict a step of a pipeline on described devices, from what its operations ask of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from src.config import Config
from src.partition.model_profile import Costs, Link, ModelProfile
from src.partition.plan import CutOptions, Plan
from src.predict import network
from src.predict.constants import Constants
from src.predict.layout import Layout
from src.predict.row import Row
from src.predict.sheets import Device
from src.predict.stage_seconds import StageSeconds
from src.predict.step import Parts, expected_maximum
from src.predict.traced import costs
from src.predict.traced.programs import Traces

# Passes of an operation, in the order of `cost.passes`.
FORWARD, FOR_INPUTS, BACKWARD = range(3)


@dataclass(frozen=True)
class OperationKernels:
    """The demands of a model's operations on a device.

    Attributes:
        traces: of one micro-batch, by its samples.
        spans: which kernels of these each pass is [3, operations + 2, 2], of the loss and of the update, too.
        parameters: of each operation [operations].
        weight_bytes: of these [operations].
        kept: (samples, bytes that each operation keeps for its backward pass [operations]), of two numbers.
    """

    traces: Traces
    spans: np.ndarray
    parameters: np.ndarray
    weight_bytes: np.ndarray
    kept: tuple[tuple[int, np.ndarray], tuple[int, np.ndarray]]

    def seconds(self, samples: int, device: Device, constants: Constants) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of each pass, and those in which its kernels start, as `spans` has them."""
        kernels = self.traces.at(samples, 1).kernels
        busy = np.concatenate([[0.0], np.cumsum(costs.seconds(kernels, device, constants))])
        started = np.concatenate([[0.0], np.cumsum(kernels.field("launches"))]) * constants.host_seconds
        begin, end = self.spans[..., 0], self.spans[..., 1]
        return busy[end] - busy[begin], started[end] - started[begin]

    def costs(self, samples: int, device: Device, constants: Constants) -> Costs:
        """Return the costs of one micro-batch by which a model is cut."""
        busy, started = self.seconds(samples, device, constants)
        taken = np.maximum(busy, started)[:, :-2]
        (few, first), (many, last) = self.kept
        kept = np.maximum(0.0, first + (samples - few) / (many - few) * (last - first))
        return Costs(
            seconds=taken[FORWARD] + taken[BACKWARD],
            parameters=self.parameters,
            weight_bytes=self.weight_bytes,
            kept_bytes=kept,
            forward_seconds=taken[FORWARD],
            input_backward_seconds=taken[FOR_INPUTS],
        )


@dataclass(frozen=True)
class Cut:
    """A model that is cut into stages.

    Attributes:
        config: of a run of them.
        kernels: of the model's operations.
        profile: of the model, with the tensors at its boundaries.
        plan: the cut.
    """

    config: Config
    kernels: OperationKernels
    profile: ModelProfile
    plan: Plan


@dataclass(frozen=True)
class TracedStages:
    """A pipeline's step, of which `parts` tells how long it takes by some constants.

    Attributes:
        row, layout: the configuration.
        model: that is cut.
    """

    row: Row
    layout: Layout
    model: Cut

    def parts(self, constants: Constants, computing: float = 1.0, summing: float = 1.0) -> Parts:
        """Return the seconds by part.

        Args:
            constants: of the machine and its software.
            computing: how many times as long this model and machine compute as the constants say.
            summing: how many times as long as they say copies sum gradients.
        """
        taken = self._taken(constants, computing)
        nothing = np.zeros_like(taken.sent)
        both = (taken, replace(taken, sent=nothing, sent_back=nothing))
        whole, without = (self._seconds(each) for each in both)
        count = self.model.config.microbatches

        def work_of(seconds: StageSeconds) -> float:
            return count * float(seconds.whole.sum()) / self.row.pipeline + float(seconds.update.mean())

        work = work_of(taken)
        busy = work_of(self._taken(constants.changed({"host_seconds": 0.0}), computing))
        exchange = max(0.0, whole - without) + summing * self._summed(constants)
        waits = work * constants.straggling * expected_maximum(self.layout.replicas)
        held_up = work - busy + constants.loop_seconds
        return Parts(busy + waits, exchange, max(0.0, without - work), held_up)

    def _summed(self, constants: Constants) -> float:
        """Return the seconds in which copies of stages sum gradients, once all passes are done."""
        sizes = self._of_devices(self._weight_bytes)
        return network.summed_gradients(self.layout, float(sizes.max()), constants)

    @property
    def _weight_bytes(self) -> np.ndarray:
        """Return the bytes of each stage's weights."""
        ends = [0, *self.model.plan.boundaries, len(self.model.profile.names)]
        sizes = self.model.kernels.weight_bytes
        return np.array([sizes[a:b].sum() for a, b in itertools.pairwise(ends)])

    def _of_devices(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of stages' values, by the device that has these stages."""
        placed = self.model.plan.devices or range(len(values))
        return np.bincount(placed, weights=values, minlength=self.row.pipeline)

    def _seconds(self, taken: StageSeconds) -> float:
        simulated = taken.simulated(self.model.config)
        assert simulated is not None
        return float(simulated.step_seconds)

    def _taken(self, constants: Constants, computing: float) -> StageSeconds:
        both = self.model.kernels.seconds(self.model.config.microbatch, self.layout.device, constants)
        busy, started = both[0] * computing, both[1]
        ends = [0, *self.model.plan.boundaries, len(self.model.profile.names)]

        def of_stages(kind: int) -> np.ndarray:
            """Return the seconds of each stage's pass, whose kernels its host may start too slowly."""
            spans = [(busy[kind, a:b].sum(), started[kind, a:b].sum()) for a, b in itertools.pairwise(ends)]
            # The loss comes behind the last operation.
            spans[-1] = (spans[-1][0] + busy[kind, -2], spans[-1][1] + started[kind, -2])
            return np.array([max(each) for each in spans])

        forward, for_inputs, backward = map(of_stages, (FORWARD, FOR_INPUTS, BACKWARD))
        sizes = self._of_devices(self._weight_bytes)
        share = sizes / max(1.0, sizes.sum())
        sent, sent_back = self._sent(constants)
        return StageSeconds(
            forward=forward,
            for_inputs=np.minimum(for_inputs, backward) + self._again(forward, computing),
            for_weights=np.maximum(0.0, backward - for_inputs),
            update=max(busy[0, -1], started[0, -1]) * share,
            sent=sent,
            sent_back=sent_back,
        )

    def _again(self, forward: np.ndarray, computing: float) -> np.ndarray:
        """Return the seconds in which each stage's `forward` pass is computed again."""
        options, count = CutOptions.of(self.model.config), self.model.config.microbatches
        if options.recompute == "selective":
            return np.array([stage.again_seconds for stage in self.model.plan.stages]) * computing
        return forward * {"full": 1.0, "except_last": (count - 1) / count}.get(options.recompute, 0.0)

    def _sent(self, constants: Constants) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of what crosses each boundary between stages, and of what comes back."""
        plan, sent, back = self.model.plan, [], []
        placed = plan.devices or list(range(len(plan.stages)))
        for boundary, (one, other) in zip(plan.boundaries, itertools.pairwise(placed), strict=True):
            # A stage's copies are neighbours.
            nodes = [place * self.layout.replicas // self.layout.per_node for place in (one, other)]
            link = link_of(self.layout, constants, within=nodes[0] == nodes[1])
            there = self.model.profile.crossing[boundary]
            sent.append(link.seconds([value.nbytes for value in there]) if one != other else 0.0)
            wanted = [value.nbytes for value in there if value.requires_grad]
            back.append(link.seconds(wanted) if one != other else 0.0)
        return np.array(sent), np.array(back)


def link_of(layout: Layout, constants: Constants, *, within: bool) -> Link:
    """Return the link between two devices, `within` a node or on two of them."""
    seconds = network.sent_to_next(layout, 1.0, constants, within=within)
    return Link(constants.latency_seconds / 2, seconds)

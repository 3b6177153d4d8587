"""Compute the seconds of a step of one configuration, by part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Protocol

from src.config.mistakes import ConfigError
from src.predict import network
from src.predict.constants import Constants
from src.predict.layout import Layout, layout
from src.predict.pipeline_time import relative_step
from src.predict.roofline import BYTES
from src.predict.row import Row
from src.predict.sheets import GIGA
from src.predict.transformer import Passes, Shapes, passes

# A backward pass is two thirds of a step, during which gradients can be exchanged.
BACKWARD_SHARE = 2 / 3
MEGA = 1e6
IMAGE_SIZE = 224
# What an update moves of each parameter: gradient, weights, two moments and a copy of the weights.
UPDATE_BYTES = 30.0


@dataclass(frozen=True)
class Parts:
    """The seconds of a step: what computes, what exchanges and isn't hidden, idle stages, and all else."""

    compute: float
    exchange: float
    bubble: float
    other: float

    @property
    def seconds(self) -> float:
        """Return the whole step's."""
        return self.compute + self.exchange + self.bubble + self.other


class Predictable(Protocol):
    """A step that can be predicted, of a configuration `row` that is laid out as `layout`."""

    @property
    def row(self) -> Row: ...

    @property
    def layout(self) -> Layout: ...

    def parts(self, constants: Constants, computing: float = 1.0, summing: float = 1.0) -> Parts:
        """Return the seconds by part, of a model and machine that compute and sum so many times as long."""


class Step:
    """A step of one configuration, of which `parts` tells how long it takes by some constants."""

    def __init__(self, row: Row) -> None:
        """Take a row; raise `ConfigError` where its step can't be predicted."""
        self.row = row
        self.layout: Layout = layout(row)
        if not row.is_transformer and row.one_device_samples_per_second is None:
            raise ConfigError(
                f"model={row.model}: needs one_device_samples_per_second, or a transformer's layers, hidden "
                "and sequence"
            )
        # A device's measured rate tells more of what it computes than shapes do, but not of parts of a layer.
        measured = row.one_device_samples_per_second is not None
        self.by_shapes = row.is_transformer and (row.tensor > 1 or not measured)
        if not self.by_shapes and row.tensor > 1:
            raise ConfigError(
                f"tensor={row.tensor}: needs a transformer's shapes, not its rate on one device"
            )
        size = self.row.gradient_bytes
        if size is None and not self.by_shapes and self.layout.replicas > 1 and not row.is_transformer:
            raise ConfigError("gradient_bytes: is needed of a model that is copied or sharded")
        if row.partition is not None and len(row.partition) != row.pipeline * self.layout.virtual:
            raise ConfigError(
                f"partition={list(row.partition)}: has {len(row.partition)} stages, pipeline={row.pipeline} "
                f"times virtual_stages={self.layout.virtual} are {row.pipeline * self.layout.virtual}"
            )

    @cached_property
    def shapes(self) -> Shapes:
        """Return the transformer's shapes."""
        return Shapes.of(self.row)

    @cached_property
    def _passes(self) -> Passes:
        return passes(self.layout, self.shapes)

    @cached_property
    def _relative(self) -> float:
        """Return a step's length in a pipeline over that of the same work, evenly spread."""
        row, plan = self.row, self.layout
        if plan.schedule is None:
            return 1.0
        shares = row.partition or ()
        return relative_step(plan.schedule, row.pipeline, plan.virtual, plan.microbatches, shares)

    def parts(self, constants: Constants, computing: float = 1.0, summing: float = 1.0) -> Parts:
        """Return the seconds by part.

        Args:
            constants: of the machine and its software.
            computing: how many times as long this model and machine compute as the constants say.
            summing: how many times as long as they say gradients are summed while nothing computes.
        """
        predict = self._by_shapes if self.by_shapes else self._by_rate
        return predict(constants, computing, summing)

    def _by_rate(self, constants: Constants, computing: float, summing: float) -> Parts:
        """Predict from what one device takes for a sample."""
        row, plan = self.row, self.layout
        assert row.one_device_samples_per_second is not None
        alone = plan.samples * plan.microbatches / row.one_device_samples_per_second
        work = alone * recomputed(row, plan.microbatches) / row.pipeline * computing
        size = (row.gradient_bytes or self._weight_bytes) / row.pipeline
        # The last micro-batch's backward passes alone hide what is summed.
        last = work * BACKWARD_SHARE / plan.microbatches
        exchange = network.summed_gradients(plan, size / plan.shard, constants)
        exposed = summing * exposed_of(exchange, last, constants)
        if plan.shard > 1:
            # Weights are gathered for both passes of each micro-batch, gradients summed and scattered.
            gathered = 3 * network.gather(plan, plan.shard, plan.tensor, size, constants)
            least, most = sorted((gathered, work / plan.microbatches))
            hidden = work / plan.microbatches - constants.shard_overlap * least
            exposed += (most - hidden) * plan.microbatches
        waits = work * constants.straggling * expected_maximum(plan.replicas)
        return Parts(work + waits, exposed, self._idle(work, constants), self._input(constants))

    @property
    def _weight_bytes(self) -> float:
        """Return the bytes of a transformer's weights, 0 of another model."""
        return self.shapes.parameters * float(BYTES[self.row.precision]) if self.row.is_transformer else 0.0

    def _idle(self, work: float, constants: Constants) -> float:
        """Return the seconds in which stages that compute for `work` seconds on average are idle."""
        row, plan = self.row, self.layout
        # What a stage takes longer than the others is waited for by each micro-batch but one.
        repeats = (plan.microbatches - 1) / plan.microbatches
        uneven = 0.0 if row.partition else constants.imbalance * expected_maximum(row.pipeline)
        return work * (self._relative - 1 + uneven * repeats)

    def _input(self, constants: Constants) -> float:
        """Return the seconds that reading and decoding a node's images add."""
        row = self.row
        if row.input != "real" or row.devices == 1:
            return 0.0
        images = row.global_batch / self.layout.nodes
        return constants.input_seconds * images * (row.image_size or IMAGE_SIZE) ** 2 / MEGA

    def _by_shapes(self, constants: Constants, computing: float, summing: float) -> Parts:
        """Predict a transformer's step from its shapes."""
        row, plan, shapes, work = self.row, self.layout, self.shapes, self._passes
        forward, backward = (each.seconds(constants) * computing for each in (work.forward, work.backward))
        attention = work.attention.seconds(constants) * computing
        head = work.head.seconds(constants) * computing
        repeated = {"full": 1.0, "except_last": (plan.microbatches - 1) / plan.microbatches}
        whole = repeated.get(row.recompute, 0.0)
        again = attention if row.recompute == "selective" else whole * forward
        computed, exchanged = self._layer(forward, backward + again, whole, constants)
        # The stage with most layers, and the last one, which has the head.
        stages = row.pipeline * plan.virtual
        layers: float = math.ceil(shapes.layers / stages) * plan.virtual
        if row.partition:
            # Shares of the time count the head in, and decide how long the slowest stage takes.
            layers, head = shapes.layers / row.pipeline, head / row.pipeline
        busy, inner = layers * computed + head, layers * (computed + exchanged)
        stage = inner + head + self._sent(constants) * plan.virtual * 2 + self._gathered_head(constants)
        idle = (self._relative - 1) * plan.microbatches * inner
        weights = self._local_parameters()
        size = weights * (4.0 if row.pipeline > 1 or row.precision in ("fp32", "tf32") else 2.0)
        summed = network.summed_gradients(plan, size / plan.shard, constants)
        # A pipeline's gradients are summed once all of its passes are done.
        last = backward * layers if row.pipeline == 1 else 0.0
        summed = summing * exposed_of(summed, last, constants)
        update = weights / plan.shard * UPDATE_BYTES / (plan.device.bandwidth * GIGA)
        update = update / constants.memory_efficiency + constants.fixed_seconds
        compute = busy * plan.microbatches
        waits = compute * constants.straggling * expected_maximum(plan.replicas)
        exchange = (stage - busy) * plan.microbatches + summed
        return Parts(compute + waits, exchange, idle, update + self._input(constants))

    def _layer(
        self, forward: float, backward: float, again: float, constants: Constants
    ) -> tuple[float, float]:
        """Return the seconds of a layer's passes: what it computes, and what exchanges add.

        `again` is the share of its forward passes that are done twice.
        """
        row, plan = self.row, self.layout
        exchanged = 0.0
        if plan.tensor > 1:
            tokens = plan.samples * self.shapes.sequence
            size = tokens * self.shapes.hidden * BYTES[row.precision]
            # Two sums in a forward pass, two in a backward pass, and two where it is done again.
            exchanged = (4 + 2 * again) * network.all_reduce(plan, plan.tensor, 1, size, constants)
        if plan.shard == 1:
            return forward + backward, exchanged
        size = self.shapes.layer_parameters / plan.tensor * BYTES[row.precision]
        gathered = network.gather(plan, plan.shard, plan.tensor, size, constants)
        for computed, moved in ((forward, gathered), (backward, 2 * gathered)):
            least, most = sorted((computed, moved))
            exchanged += most - computed + constants.shard_overlap * least
        return forward + backward, exchanged

    def _gathered_head(self, constants: Constants) -> float:
        """Return the seconds in which the head's weights are gathered, and their gradients summed."""
        if self.layout.shard == 1:
            return 0.0
        size = self.shapes.vocabulary * self.shapes.hidden * float(BYTES[self.row.precision])
        plan = self.layout
        return 3 * network.gather(plan, plan.shard, plan.tensor, size / plan.tensor, constants)

    def _sent(self, constants: Constants) -> float:
        """Return the seconds in which a micro-batch's features go from one stage to the next."""
        if self.row.pipeline == 1:
            return 0.0
        features = self.layout.samples * self.shapes.sequence * self.shapes.hidden / self.layout.tensor
        return network.sent_to_next(self.layout, features * BYTES[self.row.precision], constants)

    def _local_parameters(self) -> float:
        """Return the parameters of the device that has most."""
        own = math.ceil(self.shapes.layers / self.row.pipeline) * self.shapes.layer_parameters
        return (own + self.shapes.vocabulary * self.shapes.hidden) / self.row.tensor


def recomputed(row: Row, microbatches: int) -> float:
    """Return the work of a step over that of one that computes no activation again."""
    again = {"none": 0.0, "selective": 0.05, "full": 1.0}
    share = again.get(row.recompute, (microbatches - 1) / microbatches)
    return 1 + share * (1 - BACKWARD_SHARE)


def exposed_of(exchange: float, backward: float, constants: Constants) -> float:
    """Return the seconds of an exchange that a backward pass of so many seconds doesn't hide."""
    return max(constants.exposed * exchange, exchange - (1 - constants.exposed) * backward)


def expected_maximum(count: int) -> float:
    """Return the expected greatest of so many standard normal variables (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0

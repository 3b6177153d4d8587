"""Predict a step of a model that is cut into stages, from what its operations cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from src.config import Config, ConfigError
from src.config.schedules import SCHEDULES
from src.partition import plan as planning
from src.partition.model_profile import Costs, LiveTensor, ModelProfile
from src.partition.plan import CutOptions, Plan
from src.partition.schedules import simulation, tables
from src.predict.own.constants import Constants
from src.predict.own.cost_profile import Point
from src.predict.own.exchange_times import ExchangeTimes
from src.predict.step import Parts

# The optimizer's, of the whole model, and what else a step does once.
PASSES = ("forward", "loss", "backward")


@dataclass(frozen=True)
class StageStep:
    """A step of a run whose model is cut, of which `parts` tells how long it takes by some constants.

    Attributes:
        config: the run's.
        points: profiles of operations, by the samples of a micro-batch.
        times: of exchanges between the workers.
    """

    config: Config
    points: Sequence[Point]
    times: ExchangeTimes

    @cached_property
    def options(self) -> CutOptions:
        """Return the options of the cut."""
        return CutOptions.of(self.config)

    @cached_property
    def model(self) -> ModelProfile:
        """Return the model's operations, with tensors of the run's micro-batches at the boundaries."""
        first = self.points[0]
        found = first.ranks[0]["model"]
        scale = self.config.microbatch / first.microbatch
        crossing = tuple(
            tuple(
                LiveTensor(each["name"], round(each["nbytes"] * scale), each["requires_grad"])
                for each in there
            )
            for there in found["crossing"]
        )
        return ModelProfile(tuple(found["names"]), crossing, found["modules"], tuple(found["preferred"]))

    @cached_property
    def costs(self) -> Costs:
        """Return what the operations cost of one micro-batch, as they do side by side."""
        values = {
            key: self._between([_middle(point, key) for point in self.points])
            for key in ("seconds", "forward_seconds", "input_backward_seconds", "kept_bytes")
        }
        parts = self.step
        # An operation by itself has overheads that it shares with others in a whole pass, and warm caches.
        forward = parts["forward"] / values["forward_seconds"].sum()
        backward = parts["backward"] / (values["seconds"] - values["forward_seconds"]).sum()
        fixed = self.points[0].ranks[0]["costs"]
        own = values["forward_seconds"] * forward
        return Costs(
            seconds=own + (values["seconds"] - values["forward_seconds"]) * backward,
            parameters=np.array(fixed["parameters"]),
            weight_bytes=np.array(fixed["weight_bytes"]),
            kept_bytes=values["kept_bytes"],
            forward_seconds=own,
            input_backward_seconds=values["input_backward_seconds"] * backward,
        )

    @cached_property
    def step(self) -> dict[str, float]:
        """Return the seconds of a whole step's parts, of one micro-batch of the uncut model."""
        names = self.points[0].ranks[0]["step"]
        found = {}
        for name in names:
            each = [np.array([median(rank["step"][name] for rank in point.ranks)]) for point in self.points]
            found[name] = float(self._between(each)[0])
        return found

    @cached_property
    def plan(self) -> Plan:
        """Return the cut that the run would make."""
        demands = planning.demands_of(self.config, overlaps=self.overlaps)
        return planning.make(self.model, self.costs, self.times.link, demands)

    @property
    def overlaps(self) -> bool:
        """Return whether stages work at the same time."""
        return self.options.schedule is not None or self.options.stash is not None

    def parts(self, constants: Constants) -> Parts:
        """Return the seconds of a step by part."""
        config, plan, costs = self.config, self.plan, self.costs
        workers, count = config.degrees.pipeline, config.microbatches
        ends = [0, *plan.boundaries, len(self.model.names)]
        forward, for_inputs, for_weights = (
            np.array([each[a:b].sum() for a, b in itertools.pairwise(ends)]) * constants.computing
            for each in costs.passes()
        )
        forward[-1] += self.step["loss"] * constants.computing
        again = self._again(forward) * constants.computing
        forward, for_inputs = forward + constants.pass_seconds, for_inputs + constants.pass_seconds
        weights = costs.weight_bytes
        shares = np.array([weights[a:b].sum() for a, b in itertools.pairwise(ends)]) / max(1.0, weights.sum())
        devices = plan.devices or list(range(workers))
        # Stages of one device are updated one after another.
        share = np.bincount(devices, weights=shares, minlength=workers)
        update = (self.step["update"] + self.step["clear"]) * constants.computing * share
        sent, sent_back = self._sent(plan.boundaries, constants)
        other = constants.between_seconds
        first = np.arange(len(forward)) == 0
        whole = forward + again + for_inputs + for_weights
        if self.options.schedule is None:
            return self._one_by_one(whole, sent, sent_back, update, other)
        simulated = simulation.simulate(
            tables.table(self.options.schedule, workers, config.virtual_stages, count),
            SCHEDULES[self.options.schedule].placement,
            simulation.Costs(
                forward=forward,
                input_backward=np.where(first, 0.0, for_inputs + again),
                weight_backward=np.where(first, for_inputs + for_weights + again, for_weights),
                sent=sent,
                sent_back=sent_back,
                optimizer=update,
            ),
        )
        seconds = float(simulated.step_seconds)
        compute = float(count * whole.sum() / workers)
        updating = float(update.mean())
        idle = max(0.0, seconds - compute - updating)
        return Parts(compute, 0.0, idle, updating + other)

    def _one_by_one(
        self, whole: np.ndarray, sent: np.ndarray, sent_back: np.ndarray, update: np.ndarray, other: float
    ) -> Parts:
        """Return the parts of a step without a schedule: stages work in turn, or all the time (PipeDream)."""
        count, workers = self.config.microbatches, len(update)
        compute = float(count * whole.sum() / workers)
        if not self.overlaps:
            moved = float(count * (sent.sum() + sent_back.sum()))
            return Parts(compute, moved, compute * (workers - 1), float(update.max()) + other)
        crossing = np.zeros(len(whole))
        crossing[:-1] += sent + sent_back
        crossing[1:] += sent + sent_back
        slowest = float(count * (whole + crossing / 2).max() + update.max())
        return Parts(
            compute, 0.0, max(0.0, slowest - compute - float(update.mean())), float(update.mean()) + other
        )

    def _again(self, forward: np.ndarray) -> np.ndarray:
        """Return the seconds that each stage's forward pass is computed again for its backward pass."""
        count = self.config.microbatches
        if self.options.recompute == "selective":
            return np.array([stage.again_seconds for stage in self.plan.stages])
        share = {"full": 1.0, "except_last": (count - 1) / count}.get(self.options.recompute, 0.0)
        return forward * share

    def _sent(self, boundaries: Sequence[int], constants: Constants) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of what crosses each boundary, and of what comes back."""
        link, sent, back = self.times.link, [], []
        for boundary in boundaries:
            there = self.model.crossing[boundary]
            sent.append(link.seconds([value.nbytes for value in there]) * constants.sending)
            grads = [value.nbytes for value in there if value.requires_grad]
            back.append(link.seconds(grads) * constants.sending)
        return np.array(sent), np.array(back)

    def _between(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return what micro-batches of the run's samples have, on the line through the nearest two points."""
        wanted, sizes = self.config.microbatch, [point.microbatch for point in self.points]
        if len(values) == 1:
            if sizes[0] != wanted:
                raise ConfigError(
                    f"micro-batches of {sizes[0]} samples were profiled, not of {wanted}; profile these, or "
                    "a second size"
                )
            return values[0]
        above = min(max(1, int(np.searchsorted(sizes, wanted))), len(sizes) - 1)
        share = (wanted - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
        return np.maximum(0.0, values[above - 1] + share * (values[above] - values[above - 1]))


def _middle(point: Point, key: str) -> np.ndarray:
    """Return a cost of each operation, the median over all processes that measured it."""
    found: np.ndarray = np.median([rank["costs"][key] for rank in point.ranks], axis=0)
    return found

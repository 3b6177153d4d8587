"""Predict a step of a model that is cut into stages, from what its operations cost."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from src.config import Config
from src.config.schedules import SCHEDULES
from src.partition import plan as planning
from src.partition.model_profile import Costs, LiveTensor, ModelProfile
from src.partition.plan import CutOptions, Plan
from src.partition.schedules.simulation import Simulated
from src.predict.own.constants import Constants
from src.predict.own.cost_profile import Point
from src.predict.own.exchange_times import ExchangeTimes
from src.predict.program import Event, Interval, neighbours
from src.predict.stage_seconds import StageSeconds
from src.predict.step import Parts

# How long passes take, and how busy devices are, depend on each other.
BUSY_ROUNDS = 3


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

    # Stages send to each other.
    shared_memory = False

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
            key: self._between([np.array(_least(point)["costs"][key]) for point in self.points])
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
            each = [np.array([_least(point)["step"][name]]) for point in self.points]
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

    @cached_property
    def ease(self) -> float:
        """Return how many times as long a pass takes while no other device computes."""
        return float(self._between([np.array([_ease(point)]) for point in self.points])[0])

    @property
    def constants(self) -> frozenset[str]:
        """Return the names of the constants on which the step's seconds may depend."""
        always = {"computing", "pass_seconds", "between_seconds", "sending", "wake_seconds"}
        always |= {"exchanging"} if self.config.degrees.batch > 1 else set()
        return frozenset(
            always | ({"beside"} if self.overlaps else set()) | ({"split"} if self.splits else set())
        )

    @property
    def splits(self) -> bool:
        """Return whether backward passes for weights are done apart."""
        return self.options.schedule is not None and SCHEDULES[self.options.schedule].splits

    def parts(self, constants: Constants) -> Parts:
        """Return the seconds of a step by part."""
        return self._parts(self._as_busy(constants))

    def _as_busy(self, constants: Constants) -> Constants:
        """Return the constants with passes as long as beside devices that are busy for a part of it."""
        # Stages of which one computes at a time have no others beside them.
        beside = constants.beside if self.overlaps else 1.0
        found = together = constants.changed({"computing": constants.computing * beside})
        for _ in range(BUSY_ROUNDS if self.ease < 1.0 else 0):
            parts = self._parts(found)
            busy = parts.compute / parts.seconds if self.overlaps else 0.0
            eased = busy + (1 - busy) * self.ease
            found = together.changed({"computing": together.computing * eased})
        return found

    def _parts(self, constants: Constants) -> Parts:
        taken = self._seconds(constants)
        count, workers = self.config.microbatches, self.config.degrees.pipeline
        other, compute = constants.between_seconds, float(count * taken.whole.sum() / workers)
        simulated = self._simulated(constants)
        if simulated is None and not self.overlaps:
            moved = float(count * (taken.sent.sum() + taken.sent_back.sum()))
            return Parts(compute, moved, compute * (workers - 1), float(taken.update.max()) + other)
        seconds = self._always_busy(taken) if simulated is None else float(simulated.step_seconds)
        updating, summed = float(taken.update.mean()), self._summed(constants)
        return Parts(compute, summed, max(0.0, seconds - compute - updating), updating + other)

    def _summed(self, constants: Constants) -> float:
        """Return the seconds in which copies and shards of a stage exchange once in a step."""
        degrees, costs = self.config.degrees, self.costs
        ends = [0, *self.plan.boundaries, len(self.model.names)]
        sizes = np.array([costs.weight_bytes[a:b].sum() for a, b in itertools.pairwise(ends)])
        placed = self.plan.devices or list(range(degrees.pipeline))
        size = float(np.bincount(placed, weights=sizes).max())
        least = constants.wake_seconds if self.config.hardware.device == "cpu" else 0.0
        found = 0.0
        for kind, part, ranks in (
            ("all_gather", size / degrees.shard, degrees.shard),
            ("reduce_scatter", size, degrees.shard),
            ("all_reduce", size / degrees.shard, degrees.data),
        ):
            if ranks > 1:
                event = Event(kind, round(part), ranks, 0, 0.0)
                found += max(self.times.seconds(event, shared_memory=False) * constants.exchanging, least)
        return found

    def simulated(self, constants: Constants) -> Simulated | None:
        """Simulate a step by its schedule's table; `None` where there is none."""
        return self._simulated(self._as_busy(constants))

    def _simulated(self, constants: Constants) -> Simulated | None:
        return self._seconds(constants).simulated(self.config)

    def _seconds(self, constants: Constants) -> StageSeconds:
        plan, costs, workers = self.plan, self.costs, self.config.degrees.pipeline
        ends = [0, *plan.boundaries, len(self.model.names)]
        once, for_inputs, for_weights = (
            np.array([each[a:b].sum() for a, b in itertools.pairwise(ends)]) * constants.computing
            for each in costs.passes()
        )
        forward = once + constants.pass_seconds
        forward[-1] += self.step["loss"] * constants.computing
        weights = costs.weight_bytes
        shares = np.array([weights[a:b].sum() for a, b in itertools.pairwise(ends)]) / max(1.0, weights.sum())
        # Stages of one device are updated one after another.
        share = np.bincount(plan.devices or list(range(workers)), weights=shares, minlength=workers)
        sent, sent_back = self._sent(plan.boundaries, constants)
        slower = 1 / np.array(self.config.hardware.speeds or np.ones(workers))
        of_stages = slower[plan.devices or list(range(workers))]
        return StageSeconds(
            forward=forward * of_stages,
            for_inputs=(for_inputs + self._again(once, constants) + constants.pass_seconds) * of_stages,
            for_weights=for_weights * (constants.split if self.splits else 1.0) * of_stages,
            update=self._whole_update(constants) * share * slower / self.config.degrees.shard,
            sent=sent,
            sent_back=sent_back,
        )

    def _whole_update(self, constants: Constants) -> float:
        """Return the seconds in which all weights are updated on one device."""
        return (self.step["update"] + self.step["clear"]) * constants.computing

    def _always_busy(self, taken: StageSeconds) -> float:
        """Return the seconds of a step whose stages never wait for the next step (PipeDream)."""
        crossing = np.zeros(len(taken.whole))
        crossing[:-1] += taken.sent + taken.sent_back
        crossing[1:] += taken.sent + taken.sent_back
        return float(self.config.microbatches * (taken.whole + crossing / 2).max() + taken.update.max())

    def timelines(self, constants: Constants) -> dict[int, list[Interval]] | None:
        """Return what each rank does when, as `Timeline` records it; `None` without a schedule."""
        simulated = self.simulated(constants)
        return None if simulated is None else simulated.timelines()

    def _again(self, forward: np.ndarray, constants: Constants) -> np.ndarray:
        """Return the seconds that each stage's `forward` pass is computed again for its backward pass."""
        count = self.config.microbatches
        if self.options.recompute == "selective":
            return np.array([stage.again_seconds for stage in self.plan.stages]) * constants.computing
        share = {"full": 1.0, "except_last": (count - 1) / count}.get(self.options.recompute, 0.0)
        return forward * share

    def _sent(self, boundaries: Sequence[int], constants: Constants) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of what crosses each boundary, and of what comes back."""
        link, sent, back = self.times.link, [], []
        wakes = constants.wake_seconds if self.config.hardware.device == "cpu" else 0.0

        def seconds(sizes: list[int]) -> float:
            return max(link.seconds(sizes) * constants.sending, wakes) if sizes else 0.0

        for boundary in boundaries:
            there = self.model.crossing[boundary]
            sent.append(seconds([value.nbytes for value in there]))
            back.append(seconds([value.nbytes for value in there if value.requires_grad]))
        return np.array(sent), np.array(back)

    def _between(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return what micro-batches of the run's samples have, on the line through the nearest two points."""
        wanted, sizes = self.config.microbatch, [point.microbatch for point in self.points]
        if wanted in sizes:
            return values[sizes.index(wanted)]
        below, above = neighbours(sizes, wanted)
        share = (wanted - sizes[below]) / (sizes[above] - sizes[below])
        return np.maximum(0.0, values[below] + share * (values[above] - values[below]))


def _least(point: Point) -> Mapping[str, Any]:
    """Return what the process measured that was least disturbed: whose whole step took least time."""
    return min(point.ranks, key=lambda rank: sum(rank["step"].values()))


def _ease(point: Point) -> float:
    """Return how many times as long a whole step's passes take alone as side by side, once at most."""
    alone = [_passes(rank["alone"]) for rank in point.ranks if rank.get("alone")]
    return min(1.0, min(alone) / _passes(_least(point)["step"])) if alone else 1.0


def _passes(step: Mapping[str, float]) -> float:
    return step["forward"] + step["backward"]

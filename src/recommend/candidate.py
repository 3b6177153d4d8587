"""Describe a way of dividing a training over devices, with what is predicted of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from src.config.run_config import Degrees
from src.predict.memory import GIB
from src.predict.step import Parts
from src.predict.traced import intervals
from src.report.batch_curve import BatchCurve, Steps
from src.report.verdict.objective import COST, ENERGY, TIME

LEVEL = 0.8
# How far strategies may be off each other, as a part of a step, besides what they have in common: as far as
# those of one's own machine are believed to be (`src/predict/own/calibration.py`).
APART = 0.05
# What makes several batches unequal.
TO_TARGET = "steps to the target"
ALONE = {"data": "ddp", "shard": "fsdp", "tensor": "tensor_parallel", "pipeline": "pipeline"}


@dataclass(frozen=True)
class Target:
    """The steps to a target with a batch, and the curve over batches of which they are."""

    curve: BatchCurve
    steps: Steps


@dataclass(frozen=True)
class Candidate:
    """A way of dividing a training.

    Attributes:
        degrees: of the mesh.
        batch: samples of a step. microbatches: of a device in a step, each of `samples` samples.
        parts: the seconds of a step, by part.
        held: bytes by part on the device that holds most, when it does.
        at_start: bytes of weights on a device before the first step.
        room: bytes that a device has for that.
        samples_asked: of the whole training.
        price: of a device for an hour; `None` without prices.
        watts: the most that a device takes; `None` where its sheet doesn't say.
        target: the steps to the target; `None` where a training is of so many samples.
        recompute: what stages compute again for backward passes, as `strategy.recompute` has it.
    """

    degrees: Degrees
    batch: int
    microbatches: int
    samples: int
    parts: Parts
    held: Mapping[str, float]
    at_start: float
    room: float
    samples_asked: float
    price: float | None = None
    watts: float | None = None
    target: Target | None = None
    recompute: str = "none"

    @property
    def devices(self) -> int:
        """Return how many devices there are."""
        return math.prod(vars(self.degrees).values())

    @property
    def strategy(self) -> str:
        """Return the name of the strategy."""
        several = [name for name, degree in vars(self.degrees).items() if degree > 1]
        return "single" if not several else ALONE[several[0]] if len(several) == 1 else "hybrid"

    @property
    def name(self) -> str:
        """Return what tells it from others of its batch."""
        words = [self.strategy]
        if self.strategy == "hybrid":
            words.append(" x ".join(f"{name} {n}" for name, n in vars(self.degrees).items() if n > 1))
        if self.devices > 1:
            words.append(f"on {self.devices} devices")
        if self.microbatches > 1:
            words.append(f"with {self.microbatches} micro-batches")
        if self.recompute != "none":
            words.append("computing again")
        if self.target is not None:
            words.append(f"at batch {self.batch}")
        return " ".join(words)

    @property
    def words(self) -> list[str]:
        """Return the words of `src.train` that choose it."""
        found = [f"strategy={self.strategy}"]
        found += [f"workers={self.devices}"] if self.devices > 1 else []
        if self.strategy == "hybrid":
            found += [f"strategy.{name}={n}" for name, n in vars(self.degrees).items() if n > 1]
        if self.degrees.pipeline > 1:
            # A weight that layers share is of no account where there is none.
            found += ["strategy.schedule=1f1b", "strategy.tied=reduce"]
        found += [f"strategy.recompute={self.recompute}"] if self.recompute != "none" else []
        return [*found, f"batch={self.batch}", f"microbatches={self.microbatches}"]

    @property
    def rate(self) -> float:
        """Return the samples of a second."""
        return self.batch / self.parts.seconds

    @property
    def interval(self) -> tuple[float, float]:
        """Return between which samples a second the rate lies, in 80 of 100 cases."""
        off = math.exp(intervals.width(self.parts, LEVEL))
        return self.rate / off, self.rate * off

    @property
    def bytes(self) -> float:
        """Return what the fullest device holds, in a step or before the first one."""
        return max(sum(self.held.values()), self.at_start)

    @property
    def gib(self) -> float:
        """Return that in GiB."""
        return self.bytes / GIB

    @property
    def fits(self) -> bool:
        """Return whether it has that room."""
        return self.bytes <= self.room

    @property
    def hours(self) -> float:
        """Return the hours of the whole training, or to the target, without evaluations and start-up."""
        if self.target is not None:
            return self.target.steps.median * self.parts.seconds / 3600
        return self.samples_asked / self.rate / 3600

    @property
    def hours_interval(self) -> tuple[float, float]:
        """Return between which hours that lies, in 80 of 100 cases."""
        width, hours = intervals.width(self.parts, LEVEL), self.hours
        below = above = 0.0
        if self.target is not None:
            steps = self.target.steps
            below, above = math.log(steps.median / steps.low), math.log(steps.high / steps.median)
        return hours * math.exp(-math.hypot(width, below)), hours * math.exp(math.hypot(width, above))

    @property
    def device_hours(self) -> float:
        """Return the hours of all devices together."""
        return self.devices * self.hours

    @property
    def kilowatt_hours(self) -> float | None:
        """Return the most that the devices take in the whole training; `None` where that isn't known.

        That is their full power for as long as it may take, by the end of the interval.
        """
        return None if self.watts is None else self.watts * self.devices * self.hours_interval[1] / 1e3

    @property
    def cost(self) -> float | None:
        """Return what that costs; `None` without prices."""
        return None if self.price is None else self.price * self.device_hours

    @property
    def burdens(self) -> tuple[float, ...]:
        """Return hours, devices and memory, of which less is better."""
        return self.hours, self.devices, self.gib

    def apart(self, other: Candidate) -> float:
        """Return how far the logarithm of the ratio to another one may be off, in 80 of 100 cases."""
        return math.hypot(*doubts(self, other).values())

    def value(self, aim: str) -> float:
        """Return its figure of an aim, of which more is better."""
        if aim == "memory":
            return 1 / self.gib
        if aim in (COST, ENERGY):
            return 1 / self.device_hours
        return 1 / self.hours if aim == TIME else self.rate


def doubts(one: Candidate, other: Candidate) -> dict[str, float]:
    """Return of what the logarithm of two candidates' ratio of rates may be off, in 80 of 100 cases.

    What they have in common, devices and networks that are faster or slower than believed, moves both: it
    counts by how much more of a step it is in one of them. Idle stages wait for others that compute.
    """
    times = NormalDist().inv_cdf((1 + LEVEL) / 2)

    def shares(of: Candidate) -> dict[str, float]:
        parts = of.parts
        found = {"computing": parts.compute + parts.bubble, "exchanges": parts.exchange, "steps": parts.other}
        return {name: value / parts.seconds for name, value in found.items()}

    gaps = {name: abs(share - shares(other)[name]) for name, share in shares(one).items()}
    steps = 0.0
    if one.target is not None and other.target is not None and one.batch != other.batch:
        steps = one.target.curve.apart(one.batch, other.batch, LEVEL)
    return {
        TO_TARGET: steps,
        "computing": intervals.quantile(intervals.ERRORS, LEVEL) * gaps["computing"],
        "exchanges": times * intervals.EXCHANGE * gaps["exchanges"],
        "steps": times * intervals.OTHER * gaps["steps"],
        "strategies": times * APART,
    }

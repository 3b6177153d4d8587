"""Predict a step of a run that was rehearsed, or whose devices compute what was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from src.config import Config, ConfigError
from src.config.batch_shares import apportion
from src.predict import program
from src.predict.own import added, stand_in
from src.predict.own.constants import Constants
from src.predict.own.cost_profile import Point
from src.predict.own.exchange_times import DDP, SHARED_MEMORY, ExchangeTimes, measured_by
from src.predict.program import Event, Interval, Program, SimulatedStep
from src.predict.step import Parts, expected_maximum

# How often a batch is divided anew by what parts of it take.
ROUNDS = 8


@dataclass(frozen=True)
class RehearsedStep:
    """A step of a run that was rehearsed, of which `parts` tells how long it takes by some constants.

    Attributes:
        config: the run's.
        points: rehearsals, by the samples of a micro-batch.
        times: of exchanges between the workers; `None` where these exchange nothing.
    """

    config: Config
    points: Sequence[Point]
    times: ExchangeTimes | None

    @cached_property
    def program(self) -> Program:
        """Return what a worker with an equal part of the batch does in a step."""
        return self._program(self.config.microbatch)

    @cached_property
    def _programs(self) -> dict[float, Program]:
        return {}

    def _program(self, samples: float) -> Program:
        """Return what a worker does whose micro-batches have so many samples."""
        if samples not in self._programs:
            self._programs[samples] = self._made(samples)
        return self._programs[samples]

    def _made(self, samples: float) -> Program:
        sizes = [point.microbatch for point in self.points]
        try:
            programs = [program.least([Program.of(rank) for rank in point.ranks]) for point in self.points]
            if samples in sizes:
                found = programs[sizes.index(int(samples))]
            else:
                below, above = program.neighbours(sizes, samples)
                ends = sizes[below], sizes[above]
                found = program.between(programs[below], programs[above], ends, samples)
        except ValueError as error:
            raise ConfigError(f"{error}; profile micro-batches of {samples:g} samples again") from error
        if not self._overlaps:
            found = added.waited_for(found)
        if added.exchanges(self.config) is None:
            return found
        return added.added(found, self.config, self._trained_bytes)

    @property
    def _trained_bytes(self) -> float:
        """Return the bytes of all trained parameters."""
        for point in self.points:
            for rank in point.ranks:
                if "trained_bytes" in rank:
                    return float(rank["trained_bytes"])
        raise ConfigError(
            f"model={self.config.model['name']}: its profile doesn't say how many bytes workers of strategy="
            f"{self.config.strategy['name']} exchange; make it again"
        )

    @property
    def shared_memory(self) -> bool:
        """Return whether sums are made through shared memory."""
        strategy = self.config.strategy
        if (strategy.get("predicted") or {}).get("through") == "shared_memory":
            wanted = "auto"
        else:
            wanted = strategy.get("all_reduce", "backend")
        plain = strategy.get("compression", "none") == "none"
        here = self.config.hardware.device == "cpu" and not self.config.across_hosts
        measured = self.times is not None and self.times.has(SHARED_MEMORY)
        return measured and (wanted == "shared_memory" or (wanted == "auto" and plain and here))

    @property
    def constants(self) -> frozenset[str]:
        """Return the names of the constants on which the step's seconds may depend."""
        if self.times is None:
            return frozenset({"computing"})
        found = {"computing", "beside", "wake_seconds"}
        found.add("shared_memory" if self.shared_memory else "exchanging")
        if self._apart:
            found.add("exchanging_apart")
        found |= {"straggling"} if self.config.synchronous else set()
        found |= {"slowed"} if self._overlaps and added.exchanges(self.config) is None else set()
        found |= {"serving"} if added.exchanges(self.config) == added.SERVERS else set()
        return frozenset(found)

    @property
    def _overlaps(self) -> bool:
        """Return whether exchanges go on while a worker computes."""
        exchange = self.config.strategy.get("exchange") or {}
        return bool(exchange.get("overlaps", True))

    @property
    def _apart(self) -> bool:
        """Return whether workers exchange by something else than torch's ranks do."""
        return measured_by(self.config) != DDP or self.config.framework != "torch"

    @cached_property
    def speeds(self) -> Sequence[float]:
        """Return how fast each worker's device is, 1 at full speed."""
        return list(self.config.hardware.speeds or [1.0] * self.config.workers)

    @cached_property
    def shares(self) -> Sequence[float]:
        """Return the samples of each worker's micro-batches.

        Raises:
            ConfigError: where no micro-batches like these were profiled.
        """
        config, given = self.config, self.config.batch_shares
        if given == "equal":
            return [float(config.microbatch)] * config.workers
        if not isinstance(given, str):
            return [share / config.microbatches for share in given]
        # Shares follow the speeds under the shares before (`src/runtime/common/batch_split.py`).
        shares = [config.worker_batch] * config.workers
        for _ in range(ROUNDS):
            rates = [
                share * speed / sum(self._program(share / config.microbatches).computed)
                for share, speed in zip(shares, self.speeds, strict=True)
            ]
            shares = apportion(config.global_batch, rates, min(8 * config.microbatches, config.worker_batch))
        return [share / config.microbatches for share in shares]

    def simulated(self, constants: Constants) -> SimulatedStep:
        """Simulate a step of the worker that takes longest."""
        every = [self._simulated(constants, *kind) for kind in sorted(set(self._kinds))]
        return max(every, key=lambda step: step.seconds)

    @property
    def _kinds(self) -> Sequence[tuple[float, float]]:
        """Return the samples of each worker's micro-batches, and how fast its device is."""
        return list(zip(self.shares, self.speeds, strict=True))

    @property
    def _waits(self) -> bool:
        """Return whether workers wait for the slowest one."""
        return (self.config.strategy.get("predicted") or {}).get("waits") is not False

    def _simulated(self, constants: Constants, samples: float, speed: float) -> SimulatedStep:
        shared = self.shared_memory
        times = constants.shared_memory if shared else constants.exchanging
        times *= constants.exchanging_apart if self._apart else 1.0
        least = constants.wake_seconds if self.config.hardware.device == "cpu" else 0.0

        def seconds(event: Event) -> float:
            assert self.times is not None
            found = self.times.seconds(event, shared_memory=shared) * times
            if event.kind in (added.FETCH, added.PUSH):
                others = (event.ranks - 1) / self.config.strategy["servers"]
                return max(found, least) * (1 + others * constants.serving)
            # Ranks that sum through shared memory don't sleep; threads of another library do.
            awake = shared and not self._apart and event.kind == "all_reduce"
            return found if awake else max(found, least)

        slowed = constants.slowed if self.config.hardware.device == "cpu" else 0.0
        computing = constants.computing * (constants.beside if self.times is not None else 1.0) / speed
        own = self.program if samples == self.config.microbatch else self._program(samples)
        return own.simulate(seconds, computing=computing, slowed=slowed)

    def parts(self, constants: Constants) -> Parts:
        """Return the seconds of a step by part; of workers that don't wait for each other, their mean."""
        if not self._waits and len(set(self._kinds)) > 1:
            return self._unequal(constants)
        found = self.simulated(constants)
        exchanges = self.times is not None
        # All wait for the rank that happens to be slowest.
        waits = (
            constants.straggling * expected_maximum(self.config.workers) * found.computing
            if exchanges and self.config.synchronous
            else 0.0
        )
        own = found.computing
        return Parts(own, found.waiting + waits, 0.0, 0.0)

    def _unequal(self, constants: Constants) -> Parts:
        """Return the seconds in which workers that go on by themselves do as many steps as there are."""
        every = [self._simulated(constants, *kind) for kind in self._kinds]
        seconds = len(every) / sum(1 / each.seconds for each in every)
        computing = sum(each.computing / each.seconds for each in every) / len(every) * seconds
        return Parts(computing, seconds - computing, 0.0, 0.0)

    def timelines(self, constants: Constants) -> dict[int, list[Interval]] | None:
        """Return what each rank does when, as `Timeline` records it; `None` where stages take turns."""
        if stand_in.beside(self.config) < self.config.workers:
            return None
        every = {kind: list(self._simulated(constants, *kind).intervals) for kind in set(self._kinds)}
        return {rank: every[kind] for rank, kind in enumerate(self._kinds)}

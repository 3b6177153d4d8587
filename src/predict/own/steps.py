"""Predict a step of a run from its profile: one that was rehearsed, or one whose model is cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from src.config import Config, ConfigError
from src.predict import program
from src.predict.own import cost_profile
from src.predict.own.constants import Constants
from src.predict.own.cost_profile import OPERATIONS, Point, Profile
from src.predict.own.exchange_times import SHARED_MEMORY, ExchangeTimes
from src.predict.own.stages import StageStep
from src.predict.program import Event, Interval, Program, SimulatedStep
from src.predict.step import Parts, expected_maximum


@dataclass(frozen=True)
class RehearsedStep:
    """A step of a run that was rehearsed, of which `parts` tells how long it takes by some constants.

    Attributes:
        config: the run's.
        points: rehearsals, by the samples of a micro-batch.
        times: of exchanges between the workers; `None` of a single one.
    """

    config: Config
    points: Sequence[Point]
    times: ExchangeTimes | None

    @cached_property
    def program(self) -> Program:
        """Return what a rank does in a step."""
        wanted = self.config.microbatch
        sizes = [point.microbatch for point in self.points]
        try:
            programs = [program.least([Program.of(rank) for rank in point.ranks]) for point in self.points]
            if wanted in sizes:
                return programs[sizes.index(wanted)]
            below, above = program.neighbours(sizes, wanted)
            return program.between(programs[below], programs[above], (sizes[below], sizes[above]), wanted)
        except ValueError as error:
            raise ConfigError(f"{error}; profile micro-batches of {wanted} samples again") from error

    @property
    def shared_memory(self) -> bool:
        """Return whether gradients are summed through shared memory."""
        wanted = self.config.strategy.get("all_reduce", "backend")
        plain = self.config.strategy.get("compression", "none") == "none"
        here = self.config.hardware.device == "cpu" and not self.config.across_hosts
        measured = self.times is not None and self.times.has(SHARED_MEMORY)
        return measured and (wanted == "shared_memory" or (wanted == "auto" and plain and here))

    @property
    def constants(self) -> frozenset[str]:
        """Return the names of the constants on which the step's seconds may depend."""
        if self.times is None:
            return frozenset({"computing"})
        exchange = "shared_memory" if self.shared_memory else "exchanging"
        return frozenset({"computing", "beside", "slowed", "straggling", "wake_seconds", exchange})

    def simulated(self, constants: Constants) -> SimulatedStep:
        """Simulate a step of ranks that all take as long."""
        shared = self.shared_memory
        times = constants.shared_memory if shared else constants.exchanging
        least = constants.wake_seconds if self.config.hardware.device == "cpu" else 0.0

        def seconds(event: Event) -> float:
            assert self.times is not None
            found = self.times.seconds(event, shared_memory=shared) * times
            return found if shared and event.kind == "all_reduce" else max(found, least)

        slowed = constants.slowed if self.config.hardware.device == "cpu" else 0.0
        computing = constants.computing * (constants.beside if self.times is not None else 1.0)
        return self.program.simulate(seconds, computing=computing, slowed=slowed)

    def parts(self, constants: Constants) -> Parts:
        """Return the seconds of a step by part."""
        found = self.simulated(constants)
        exchanges = any(event.ranks for event in self.program.events)
        # All wait for the rank that happens to be slowest.
        waits = (
            constants.straggling * expected_maximum(self.config.workers) * found.computing
            if exchanges
            else 0.0
        )
        own = found.computing
        return Parts(own, found.waiting + waits, 0.0, 0.0)

    def timelines(self, constants: Constants) -> dict[int, list[Interval]] | None:
        """Return what each rank does when, as `Timeline` records it; all do the same."""
        intervals = list(self.simulated(constants).intervals)
        return dict.fromkeys(range(self.config.workers), intervals)


OwnStep = RehearsedStep | StageStep


def of(config: Config, profile: Profile, network: float = 1.0) -> OwnStep:
    """Return the step of a run.

    Args:
        config: the run's.
        profile: of its machine.
        network: how many times as fast its network is as it was measured.

    Raises:
        ConfigError: where the profile has nothing from which it can be predicted.
    """
    points = profile.of(config)
    several = config.workers > 1
    times = ExchangeTimes.of(profile, config, network) if several else None
    if cost_profile.kind_of(config) == OPERATIONS:
        assert times is not None
        return StageStep(config, points, times)
    return RehearsedStep(config, points, times)

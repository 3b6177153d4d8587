"""Simulate a step of ranks that all do the same, from what one of them computes between its exchanges.

A rehearsal (`src/runtime/torch/rehearsal.py`) tells a rank's events in order. As all ranks do the same at the
same time, one of them stands for all: an exchange begins when the rank hands it over and lasts as long as the
network takes, one after another; the rank goes on meanwhile where it doesn't wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from src.config.mistakes import ConfigError
from src.measure.kernels import UPDATE, WAIT

# How many times as large, or as small, as any that was profiled a micro-batch may be.
FAR = 2
# Intervals as a timeline has them: step, activity, micro-batch, start, end.
Interval = tuple[int, str, int, float, float]


@dataclass(frozen=True)
class Event:
    """An event of a rank's step.

    Attributes:
        kind: of an exchange that is handed over, as `all_reduce`; `wait` for one; or `update`, which begins.
        size: bytes that the rank hands over.
        ranks: that take part.
        call: the number of the exchange, to which a wait refers.
        seconds: that the rank has computed since the last event.
        stride: how far apart the ranks' numbers are.
        share: in which part of the steps it happens.
    """

    kind: str
    size: int
    ranks: int
    call: int
    seconds: float
    stride: int = 1
    share: float = 1.0


# The seconds of an exchange.
Exchange = Callable[[Event], float]


@dataclass(frozen=True)
class SimulatedStep:
    """A simulated step of one rank.

    Attributes:
        seconds: of the whole step.
        computing: in which the rank computes.
        waiting: in which it waits for exchanges.
        exchanging: of all exchanges, hidden ones too.
        intervals: what the rank does when.
    """

    seconds: float
    computing: float
    waiting: float
    exchanging: float
    intervals: tuple[Interval, ...]


@dataclass(frozen=True)
class Program:
    """The events of a rank's step in order, and the seconds that it computes after the last one."""

    events: tuple[Event, ...]
    last_seconds: float

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> Program:
        """Return the program of which a rehearsal has left a summary."""
        events = (
            Event(each["kind"], each["bytes"], each["ranks"], each["call"], each["seconds"])
            for each in summary["events"]
        )
        return cls(tuple(events), summary["last_seconds"])

    @property
    def alike(self) -> tuple[tuple[str, int], ...]:
        """Return what programs of other sizes of micro-batches have in common with this one."""
        return tuple((event.kind, event.call) for event in self.events)

    @property
    def computed(self) -> list[float]:
        """Return the seconds that are computed before each event and after the last one."""
        return [*(event.seconds for event in self.events), self.last_seconds]

    def simulate(self, exchange: Exchange, *, computing: float = 1.0, slowed: float = 0.0) -> SimulatedStep:
        """Simulate a step.

        Args:
            exchange: tells how long an exchange takes.
            computing: how many times as long the rank computes as it did.
            slowed: the part of an exchange by which the rank computes longer while it goes on.
        """
        now = free = owed = exchanging = 0.0
        ends: dict[int, float] = {}
        intervals: list[Interval] = []

        def compute(seconds: float, activity: str) -> None:
            nonlocal now, owed
            # What goes on beside the computation delays it, as long as there is something to delay.
            delay = min(owed, seconds * slowed / (1 - slowed) if slowed < 1 else owed)
            owed -= delay
            if seconds + delay > 0:
                intervals.append((0, activity, -1, now, now + seconds + delay))
            now += seconds + delay

        def wait(until: float) -> None:
            nonlocal now, owed
            if until > now:
                intervals.append((0, WAIT, -1, now, until))
                now = until
            # What has ended delays nothing any more.
            owed = min(owed, max(0.0, free - now) * slowed)

        for number, event in enumerate(self.events):
            compute(event.seconds * computing, "compute")
            if event.kind == WAIT:
                wait(ends.pop(event.call, now))
            elif event.kind == UPDATE:
                # Whoever takes averaged gradients waits for all of these.
                for call in [*ends]:
                    wait(ends.pop(call))
            else:
                seconds = exchange(event) * event.share
                exchanging += seconds
                free = max(now, free) + seconds
                ends[event.call] = free
                if not self._waits_at_once(number):
                    owed += seconds * slowed
        updates = any(event.kind == UPDATE for event in self.events)
        compute(self.last_seconds * computing, UPDATE if updates else "compute")
        waiting = sum(end - start for _, activity, _, start, end in intervals if activity == WAIT)
        return SimulatedStep(now, now - waiting, waiting, exchanging, tuple(intervals))

    def _waits_at_once(self, number: int) -> bool:
        following = self.events[number + 1 : number + 2]
        return bool(following) and following[0].kind == WAIT and following[0].call == self.events[number].call


def neighbours(sizes: Sequence[int], wanted: float) -> tuple[int, int]:
    """Return the places of the two sizes of micro-batches from which steps of another size are predicted.

    Raises:
        ConfigError: where there is one alone, or the size is far from all.
    """
    if len(sizes) < 2 or not min(sizes) / FAR <= wanted <= max(sizes) * FAR:
        there = ", ".join(map(str, sizes))
        raise ConfigError(
            f"micro-batches of {there} samples were profiled, not of {wanted}; profile these, or sizes "
            "around it"
        )
    above = next((place for place, size in enumerate(sizes) if size > wanted and place), len(sizes) - 1)
    return above - 1, above


def between(few: Program, many: Program, samples: tuple[int, int], wanted: float) -> Program:
    """Return the program of micro-batches of `wanted` samples, from those of fewer and of more.

    Raises:
        ValueError: for programs that don't do the same.
    """
    if few.alike != many.alike:
        raise ValueError("steps of other sizes do other things")
    share = (wanted - samples[0]) / (samples[1] - samples[0])

    def mixed(one: float, other: float) -> float:
        return max(0.0, one + share * (other - one))

    events = [
        Event(a.kind, round(mixed(a.size, b.size)), a.ranks, a.call, mixed(a.seconds, b.seconds))
        for a, b in zip(few.events, many.events, strict=True)
    ]
    return Program(tuple(events), mixed(few.last_seconds, many.last_seconds))


def least(programs: Sequence[Program]) -> Program:
    """Return the program of several rehearsals of it: the one that computes for least time.

    What a neighbour on the machine does makes a rehearsal longer, never shorter.

    Raises:
        ValueError: for programs that don't do the same.
    """
    first = programs[0]
    if any(each.alike != first.alike for each in programs):
        raise ValueError("rehearsals did other things than each other")
    return min(programs, key=lambda one: sum(one.computed))

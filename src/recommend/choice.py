"""Choose among ways that were predicted: the best one within limits, and what is as good as far as known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from src.predict.held import MARGIN
from src.predict.memory import GIB
from src.recommend.words import span
from src.report.verdict.objective import COST, ENERGY, THROUGHPUT, TIME

# The simpler ones first: what has less to go wrong.
SIMPLE = ("single", "ddp", "fsdp", "tensor_parallel", "pipeline", "hybrid")
# A smaller difference is none.
MATTERS = 0.01
# So many of what is as good, or nearly so, are named.
SHOWN = 3


class Way(Protocol):
    """A way of dividing a training, with what is predicted or was measured of it."""

    @property
    def strategy(self) -> str:
        """Return the name of its strategy."""

    @property
    def name(self) -> str:
        """Return what tells it from others."""

    @property
    def devices(self) -> int:
        """Return how many it has."""

    @property
    def batch(self) -> int:
        """Return the samples of a step."""

    @property
    def rate(self) -> float:
        """Return the samples of a second."""

    @property
    def hours(self) -> float:
        """Return the hours of the whole training."""

    @property
    def hours_interval(self) -> tuple[float, float]:
        """Return between which hours that lies, in 80 of 100 cases."""

    @property
    def cost(self) -> float | None:
        """Return what that costs; `None` without prices."""

    @property
    def gib(self) -> float:
        """Return what a device holds; 0 where that isn't known."""

    @property
    def room(self) -> float:
        """Return the bytes that a device has for that."""

    @property
    def fits(self) -> bool:
        """Return whether it has that room."""

    @property
    def burdens(self) -> tuple[float, ...]:
        """Return its figures of which less is better, whatever the aim is."""

    def value(self, aim: str) -> float:
        """Return its figure of an aim, of which more is better."""

    def apart(self, other: Any) -> float:
        """Return how far the logarithm of the ratio to another one may be off, in 80 of 100 cases."""


W = TypeVar("W", bound=Way)


@dataclass(frozen=True)
class Limits:
    """Limits within which a choice must stay, by the end of its interval; `None` is none."""

    hours: float | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Choice(Generic[W]):
    """The choice for an aim.

    Attributes:
        aim: its name.
        chosen: the choice; `None` where nothing is within the limits.
        tied: those that are as good, as far as known, the best first.
        behind: those that aren't, the best first.
        front: those of which no other one is as good in all that burdens.
        refused: why others can't be chosen, a sentence each.
    """

    aim: str
    chosen: W | None
    tied: tuple[W, ...]
    behind: tuple[W, ...]
    front: tuple[W, ...]
    refused: tuple[str, ...]


def choose(candidates: Sequence[W], aim: str, limits: Limits = Limits()) -> Choice[W]:
    """Choose among candidates of one batch.

    The leader has the best figure. Of those that aren't told from it the one with the fewest devices is
    chosen, for more cost more, and of these the simplest; for the least memory the fastest one is. The
    cheapest is chosen for the cost, and the least device-hours for energy, unless fewer devices have within
    1 % of it.
    """
    fit = [each for each in candidates if each.fits]
    refused = _refused(candidates, fit, limits)
    able = [each for each in fit if is_within(each, limits)]
    if not able:
        return Choice(aim, None, (), (), (), tuple(refused))
    order = sorted(able, key=lambda each: (each.value(aim), -each.devices), reverse=True)
    leader = order[0]
    tied = [each for each in order if _is_tied(leader, each, aim)]
    if aim in (THROUGHPUT, TIME):
        chosen = min(tied, key=lambda each: (each.devices, _simplicity(each), -each.value(aim)))
    elif aim in (COST, ENERGY):
        near = [each for each in tied if leader.value(aim) <= (1 + MATTERS) * each.value(aim)]
        chosen = min(near, key=lambda each: (each.devices, _simplicity(each)))
    else:
        chosen = max(tied, key=lambda each: each.rate)
    return Choice(
        aim,
        chosen,
        tuple(each for each in tied if each is not chosen),
        tuple(each for each in order if each not in tied),
        tuple(front(able)),
        tuple(refused),
    )


def is_within(candidate: Way, limits: Limits) -> bool:
    """Return whether a way stays within limits in 90 of 100 cases: it may take longer than expected."""
    return not _is_late(candidate, limits) and not _is_dear(candidate, limits)


def _is_late(way: Way, limits: Limits) -> bool:
    return limits.hours is not None and way.hours_interval[1] > limits.hours


def _is_dear(way: Way, limits: Limits) -> bool:
    return limits.cost is not None and (most_cost(way) or 0.0) > limits.cost


def most_cost(way: Way) -> float | None:
    """Return what a way costs where it takes as long as it may; `None` without prices."""
    return None if way.cost is None else way.cost * way.hours_interval[1] / way.hours


def _is_tied(leader: Way, other: Way, aim: str) -> bool:
    """Return whether another one is as good as the leader, as far as known."""
    if other is leader:
        return True
    off = math.log(leader.value(aim) / other.value(aim))
    return off <= (math.log1p(MARGIN) if aim == "memory" else leader.apart(other))


def front(candidates: Sequence[W]) -> list[W]:
    """Return the candidates of which no other one is as good in all that burdens: time, devices, memory.

    They are in order of devices, and of times.
    """

    def beats(one: Way, other: Way) -> bool:
        ratios = [ours / theirs for ours, theirs in zip(other.burdens, one.burdens, strict=True)]
        return min(ratios) >= 1 - MATTERS and max(ratios) > 1 + MATTERS

    best = [each for each in candidates if not any(beats(other, each) for other in candidates)]
    best.sort(key=_simplicity)
    # Where several differ in nothing the simplest one stands for all.
    kept = [each for place, each in enumerate(best) if not any(_alike(other, each) for other in best[:place])]
    return sorted(kept, key=lambda each: (each.devices, -each.hours))


def _alike(one: Way, other: Way) -> bool:
    """Return whether two differ in nothing that matters."""
    pairs = zip(one.burdens, other.burdens, strict=True)
    return all(abs(ours / theirs - 1) < MATTERS for ours, theirs in pairs)


def _simplicity(way: Way) -> int:
    return SIMPLE.index(way.strategy) if way.strategy in SIMPLE else len(SIMPLE)


def _refused(candidates: Sequence[Way], fit: Sequence[Way], limits: Limits) -> list[str]:
    """Say what can't be chosen, and what would do."""
    said = []
    if too_large := [each for each in candidates if each not in fit]:
        least = min(too_large, key=lambda each: each.gib)
        said.append(
            f"{len(too_large)} of {len(candidates)} ways don't fit; of these {least.name} needs least, "
            f"{least.gib:.3g} GiB a device, of {max(0.0, least.room / GIB):.3g} beside what frameworks take"
        )
    late = [each for each in fit if _is_late(each, limits)]
    if late:
        quickest = min(fit, key=lambda each: each.hours_interval[1])
        said.append(
            f"{len(late)} may take longer than limit.hours={limits.hours:g}; the quickest, {quickest.name}, "
            f"takes {span(quickest.hours, quickest.hours_interval)}"
        )
    dear = [each for each in fit if _is_dear(each, limits)]
    if dear:
        cheapest = min(fit, key=lambda each: most_cost(each) or 0.0)
        said.append(
            f"{len(dear)} may cost more than limit.cost={limits.cost:g}; the cheapest, {cheapest.name}, "
            f"costs {cheapest.cost:.3g}, or up to {most_cost(cheapest):.3g}"
        )
    return said

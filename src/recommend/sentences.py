"""Say what answers have in common, whether their ways were predicted on described devices or on one's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from src.predict.step import Parts
from src.recommend.choice import SHOWN, Choice, W
from src.report.verdict.objective import THROUGHPUT, TIME, Objective

# How many times as long as expected a training may take: what ends it first is `max_minutes`.
SLACK = 2.0


def opening(
    choice: Choice[W], alone: W | None, figures: Callable[[W], str], at_batch: str, *, suffices: bool = False
) -> list[str]:
    """Say what is chosen, and what that gives beside one device, or first that nothing should be distributed.

    Args:
        choice: what is chosen.
        alone: one device; `None` where nothing is known of it.
        figures: returns the words on a way's figures.
        at_batch: words on the batch of one device, where that is another one.
        suffices: whether one device, which wasn't asked for, would be chosen if it were.
    """
    chosen, aim = choice.chosen, choice.aim
    assert chosen is not None
    found = f"{chosen.name}: {figures(chosen)}"
    if alone is None or aim not in (THROUGHPUT, TIME):
        return [f"Train with {found}."]
    several = [*choice.tied, *choice.behind]
    if chosen.devices == 1:
        more = "of what fits and is within limits " if choice.refused else ""
        none = f"Nothing should be distributed: {more}more devices aren't faster, as far as known."
        return [f"Train with {found}.", *([none] if any(each.devices > 1 for each in several) else [])]
    times = chosen.value(aim) / alone.value(aim)
    beside = f"{times:.3g} times as fast as one device{at_batch}"
    if suffices:
        none = f"one device alone, with {figures(alone)}, is as fast, as far as known"
        return [
            f"Nothing should be distributed: {none}.",
            f"Of what was asked for, the best is {found}; that is {beside}.",
        ]
    fits = "" if alone.fits else ", which has no room for it"
    return [f"Train with {found}.", f"That is {beside}{fits}."]


def others(choice: Choice[W], figures: Callable[[W], str]) -> list[str]:
    """Say what is as good as the choice, as far as known, what is behind it, and why others can't be chosen.

    Args:
        choice: what is chosen.
        figures: returns the words on a way's figures.
    """
    said = []
    if choice.tied:
        shown = "; ".join(f"{each.name}, {figures(each)}" for each in choice.tied[:SHOWN])
        more = f"; and {len(choice.tied) - SHOWN} more" if len(choice.tied) > SHOWN else ""
        said.append(f"As good, as far as known: {shown}{more}.")
    if choice.behind:
        shown = "; ".join(f"{each.name}, {figures(each)}" for each in choice.behind[:SHOWN])
        said.append(f"Behind it: {shown}.")
    return said + refused(choice)


def batches_of(choice: Choice[W]) -> list[int]:
    """Return the batches of all that could be chosen, in order."""
    chosen = [] if choice.chosen is None else [choice.chosen]
    return sorted({each.batch for each in [*chosen, *choice.tied, *choice.behind]})


def refused(choice: Choice[W]) -> list[str]:
    """Say why ways can't be chosen, a sentence each."""
    return [f"{reason[0].upper()}{reason[1:]}." for reason in choice.refused]


def of_step(parts: Parts, rest: str) -> str:
    """Return what a step consists of, the most first, as parts of it; `rest` says what all else is."""
    named = {
        "computing": parts.compute,
        "exchanges that computing doesn't hide": parts.exchange,
        "idle stages": parts.bubble,
        rest: parts.other,
    }
    return ", ".join(
        f"{name} {100 * value / parts.seconds:.0f} %"
        for name, value in sorted(named.items(), key=lambda item: -item[1])
        if value >= 0.005 * parts.seconds
    )


def limits_of(objective: Objective, most_cost: float | None) -> dict[str, float]:
    """Return the limits of a choice, by their words, as programs read them."""
    limits = {
        "limit.memory_gib": objective.memory_gib,
        "limit.hours": objective.hours,
        "limit.cost": most_cost,
    }
    return {key: value for key, value in limits.items() if value is not None}


def max_minutes(words: Sequence[str], hours: float) -> list[str]:
    """Return the word that limits a training of so many hours at most, unless its words have one."""
    given = any(word.startswith("max_minutes=") for word in words)
    return [] if given else [f"max_minutes={math.ceil(SLACK * 60 * hours)}"]

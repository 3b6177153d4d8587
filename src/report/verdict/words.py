"""Put figures, configurations and ratios into words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from src.report.repeats import Ratio, mean_interval
from src.report.verdict.answer import Compared
from src.report.verdict.candidates import Candidate, Question
from src.report.verdict.objective import ACCURACY, AIMS, COST, THROUGHPUT, Aim, Objective
from src.report.views import KINDS, show

# What a figure of an aim says, and what a ratio of it is of: with {figure}, {ratio} and {reference}.
PHRASES = {
    THROUGHPUT: ("{figure} samples/s", "{ratio} times as fast as {reference}"),
    "time_to_accuracy": ("{figure} to its target", "{ratio} times the time of {reference}"),
    "memory": ("{figure} a device", "{ratio} times the memory of {reference}"),
    "energy": ("{figure}", "{ratio} times the energy of {reference}"),
    COST: ("{figure}", "{ratio} times the price of {reference}"),
    ACCURACY: ("{figure}", "{ratio} points from {reference}"),
}


def name(candidate: Candidate, question: Question) -> str:
    """Return the words for a configuration; with its batch where the question's have several."""
    row, devices = candidate.first, candidate.devices
    size = "" if candidate.alone else f" on {devices} device{'s' if devices > 1 else ''}"
    weak = ", weak" if devices > 1 and row.get("scaling") == "weak" else ""
    batches = {known.first.get("batch") for known in question.candidates}
    batch = f" with batch {row.get('batch')}" if len(batches) > 1 else ""
    return f"{row['label']}{size}{weak}{batch}"


def figure(candidate: Candidate, objective: Objective) -> str:
    """Return a configuration's figure of the aim, with its unit."""
    aim, value = objective.aim, candidate.middle(objective.aim.metric)
    if aim.name == COST and value is not None and objective.prices is not None:
        shown = f"{value:.3g} {objective.prices.currency}"
    elif aim.name == ACCURACY:
        shown = score(candidate)
    else:
        shown = show(value, KINDS[aim.metric])
    return PHRASES[aim.name][0].format(figure=shown)


def score(candidate: Candidate) -> str:
    """Return a configuration's test accuracy, or the first metric of its task by name."""
    metric = candidate.first.get("metric") or ACCURACY
    kind = "accuracy" if metric == ACCURACY else "loss"
    by_seed = [*candidate.figures(AIMS[ACCURACY]).values()]
    interval = mean_interval(by_seed)
    if interval is None:
        return f"{metric} {show(candidate.middle('score'), kind)}, one seed"
    low, high = (show(bound, kind) for bound in interval)
    return f"{metric} {show(mean(by_seed), kind)}, mean of {len(by_seed)} seeds, 95 % {low} to {high}"


def over(ratio: Ratio, reference: str, aim: Aim, *, first: bool = False, metric: str = ACCURACY) -> str:
    """Return the words for a ratio, or a difference, to a configuration, with its interval if it has one.

    The `first` interval of a text says what it is. Of an accuracy, the `metric`, differences are points.
    """
    points = metric == ACCURACY
    phrase = PHRASES[aim.name][1] if points else "{ratio} from {reference}"
    shown = phrase.format(ratio=_plain(ratio.value, aim, points), reference=reference)
    if ratio.interval is None:
        return shown
    low, high = (_plain(bound, aim, points) for bound in ratio.interval)
    among = f" for all {ratio.among} at once" if ratio.among > 2 else ""
    return f"{shown} ({f'95 % interval{among} ' if first else ''}{low} to {high})"


def _plain(value: float, aim: Aim, points: bool) -> str:
    if aim.name == ACCURACY:
        return f"{value * 100:+.2f}" if points else f"{value:+.4f}"
    return show(value, "ratio")


def span(values: Sequence[float | None], kind: str) -> str:
    """Return a figure, or the least and the largest of several; empty where none is known."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = show(min(known), kind), show(max(known), kind)
    return low if low == high else f"{low} to {high}"


def why(compared: Compared) -> str:
    """Return a clause on what a configuration spends its time with, after a comma; empty where unknown."""
    candidate = compared.candidate
    if candidate.first.get("bound") == "input":
        waits = candidate.middle("input_wait_fraction")
        return f", and waits {show(waits, 'percent')} of the time for its input"
    if (idle := candidate.middle("bubble_fraction")) is not None and candidate.devices > 1:
        return f", and its stages are idle {show(idle, 'percent')} of the time"
    busy = candidate.middle("busy_fraction")
    if busy is not None and candidate.devices > 1 and busy < 0.9:
        return f", and its devices compute {show(busy, 'percent')} of the time"
    return ""

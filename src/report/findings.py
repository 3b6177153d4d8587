"""Check the papers' claims against the runs of a study, each by a generic rule.

A claim is a mapping of a study's `findings` list: `paper`, `where`, `claim` (words), `rule` (a name in
`RULES`), `select` (which runs count: a value or a list a key), and what the rule itself reads. A rule is a
function of (claim, rows) to a `Verdict`; registering it with `@rule("name")` is all that adding one takes.
Rows are flat: a run's configuration, metrics and every column of the tables.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from src.measure.arithmetic import interpolate, kendall_tau, mean
from src.report.runs import Row
from src.report.sides import (
    Claim,
    UnlikeError,
    average,
    groups,
    interval,
    is_speed,
    marks,
    means_by,
    select,
)
from src.run.status import Status

Curve = Sequence[tuple[float, float]]
CONFIRMED, CONTRADICTED, UNDECIDED = "confirmed", "contradicted", "undecided"
# A change below this share of the smaller figure is noise, unless a claim gives its own `tolerance`.
TOLERANCE = 0.05
SHOWN_GROUPS = 12


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check: `confirmed`, `contradicted` or `undecided`, with our numbers or the reason."""

    word: str
    numbers: str


RuleFunction = Callable[[Claim, Sequence[Row]], Verdict]
RULES: dict[str, RuleFunction] = {}


def rule(name: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule under the name by which a study's YAML asks for it."""

    def register(function: RuleFunction) -> RuleFunction:
        RULES[name] = function
        return function

    return register


def check(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Return the verdict on one claim; one that cannot be evaluated is `undecided`, with the reason."""
    name = claim.get("rule")
    if name not in RULES:
        return Verdict(UNDECIDED, f"no rule is called {name!r}; there are {', '.join(sorted(RULES))}")
    chosen = select(rows, claim.get("select"))
    try:
        verdict = RULES[name](claim, chosen)
        return Verdict(verdict.word, verdict.numbers + marks(chosen))
    except UnlikeError as error:
        return Verdict(UNDECIDED, f"unlike runs: {error}")
    except (KeyError, TypeError, ValueError) as error:
        return Verdict(UNDECIDED, f"the claim cannot be evaluated: {type(error).__name__}: {error}")


@rule("trend")
def trend(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Decide whether `metric` rises, falls or stays flat over `over`, by majority of the groups of `within`.

    It rises in a group when the last value exceeds the first by more than `tolerance` and Kendall's tau
    is at least 0.5; it is flat when the largest is at most (1 + `tolerance`) times the smallest. A group
    needs `points` (2) different values of `over`.
    """
    over, expect, bound = claim["over"], claim["expect"], 1 + claim.get("tolerance", TOLERANCE)
    words, notes = [], []
    for name, group in groups(rows, claim).items():
        known = means_by(group, over, claim["metric"])
        if len(known) < claim.get("points", 2):
            continue
        words.append(_trend_word(known, expect, bound))
        xs = sorted(known)
        notes.append(f"{name}{known[xs[0]]:.4g} at {over} {xs[0]} to {known[xs[-1]]:.4g} at {xs[-1]}")
    return _majority(words, notes, f"too few points: no group has {claim.get('points', 2)} values of {over}")


def _trend_word(curve: Mapping[float, float], expect: str, bound: float) -> str:
    xs = sorted(curve)
    ys = [curve[x] for x in xs]
    if expect == "flat":
        return CONFIRMED if min(ys) > 0 and max(ys) <= min(ys) * bound else CONTRADICTED
    if expect not in ("rises", "falls"):
        raise ValueError(f"expect {expect!r} is none of rises, falls, flat")
    first, last = (ys[0], ys[-1]) if expect == "rises" else (ys[-1], ys[0])
    tau = (kendall_tau(xs, ys) or 0.0) * (1 if expect == "rises" else -1)
    if last > first * bound and tau >= 0.5:
        return CONFIRMED
    return CONTRADICTED if first > last * bound and tau <= -0.5 else UNDECIDED


@rule("ratio")
def ratio(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Decide whether `metric` of the runs `of` is higher, lower or the same as that of `to`, by majority.

    Both are averaged within each group of `within`; `same` means a ratio within `tolerance` of 1. Where the
    metric is a time or a throughput and was measured repeatedly, a ratio is higher or lower than 1 only if
    its 95 % interval excludes 1, whatever the tolerance.
    """
    metric, (expect, bound) = claim["metric"], _comparison(claim)
    words, notes = [], []
    for name, group in groups(rows, claim).items():
        sides = [select(group, claim[key]) for key in ("of", "to")]
        above, below = (average(side, metric) for side in sides)
        if above is None or not below:
            continue
        between = interval(sides[0], sides[1], metric) if is_speed(metric) else None
        words.append(_ratio_word(above / below, expect, bound, between))
        shown = f" ({between[0]:.3g} to {between[1]:.3g})" if between else ""
        notes.append(f"{name}{above:.4g} / {below:.4g} = {above / below:.3g}{shown}")
    return _majority(words, notes, "too few points: no group has both sides of the ratio")


@rule("curves")
def curves(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Decide whether `metric` of the runs `of` is higher, lower or the same as that of `to` at equal `over`.

    `over` is `epoch` or `train_seconds`. Curves run straight between evaluations on the test set and are
    averaged over the runs of a side. In each group of `within` every evaluation counts at which all curves
    are known; the group's word is that of more than half of them, and the groups vote.
    """
    metric, over, (expect, bound) = claim["metric"], claim["over"], _comparison(claim)
    words, notes = [], []
    for name, group in groups(rows, claim).items():
        chosen = [select(group, claim[key]) for key in ("of", "to")]
        for side in chosen:
            average(side, metric)
        points = _meeting(*([_learned(row, over, metric) for row in side] for side in chosen))
        if not points:
            continue
        votes = [_ratio_word(above / below, expect, bound) for _, above, below in points]
        words.append(_majority(votes, [], "").word)
        shown = [f"{above:.4g} / {below:.4g} at {over} {x:.4g}" for x, above, below in points]
        agree, disagree = votes.count(CONFIRMED), votes.count(CONTRADICTED)
        ends = " to ".join(dict.fromkeys((shown[0], shown[-1])))
        notes.append(f"{name}{agree} of {len(votes)} points agree, {disagree} disagree: {ends}")
    return _majority(words, notes, f"too few points: no group has both sides at an equal {over}")


def _learned(row: Row, over: str, metric: str) -> list[tuple[float, float]]:
    """Return a run's curve: `metric` of each evaluation, by `over`."""
    points = [(known.get(over), known.get(metric)) for known in row.get("evaluations") or []]
    return [(x, y) for x, y in points if x is not None and y is not None and math.isfinite(y)]


def _meeting(of: Sequence[Curve], to: Sequence[Curve]) -> list[tuple[float, float, float]]:
    """Return (x, mean of `of`, mean of `to`) for each x of an evaluation where all curves are known."""
    points = []
    for x in sorted({x for curve in (*of, *to) for x, _ in curve}):
        means = [_mean_at(side, x) for side in (of, to)]
        if means[0] is not None and means[1]:
            points.append((x, means[0], means[1]))
    return points


def _mean_at(curves: Sequence[Curve], x: float) -> float | None:
    """Average curves at `x`; `None` where one of them is not known there, or there are none."""
    values = [interpolate(curve, x) for curve in curves]
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None


def _comparison(claim: Claim) -> tuple[str, float]:
    """Return the relation that a claim expects of a ratio, and the bound past which a ratio is not 1."""
    expect = claim["expect"]
    if expect not in ("higher", "lower", "same", "not higher"):
        raise ValueError(f"expect {expect!r} is none of higher, lower, same, not higher")
    return expect, 1 + claim.get("tolerance", TOLERANCE)


def _ratio_word(value: float, expect: str, bound: float, between: tuple[float, float] | None = None) -> str:
    """Return the word on a ratio, which may be told from 1 by its interval, if it has one, or by `bound`."""
    low, high = between or (value / bound, value * bound)
    relation = "higher" if low > 1 else "lower" if high < 1 else "same"
    if between and relation == expect == "same" and not 1 / bound <= low <= high <= bound:
        # The repetitions scatter too much to call the sides the same.
        return UNDECIDED
    if relation == expect or (expect == "not higher" and relation != "higher"):
        return CONFIRMED
    return UNDECIDED if relation == "same" else CONTRADICTED


@rule("local_maximum")
def local_maximum(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Decide whether `metric` at `over` = `at` exceeds both neighbouring points by more than `tolerance`."""
    over, at, bound = claim["over"], claim["at"], 1 + claim.get("tolerance", TOLERANCE)
    words, notes = [], []
    for name, group in groups(rows, claim).items():
        known = means_by(group, over, claim["metric"])
        xs = sorted(known)
        if at not in known or at in (xs[0], xs[-1]):
            continue
        place = xs.index(at)
        sides = [known[xs[place - 1]], known[xs[place + 1]]]
        clear, above = known[at] > max(sides) * bound, known[at] > max(sides)
        words.append(CONFIRMED if clear else UNDECIDED if above else CONTRADICTED)
        notes.append(f"{name}{sides[0]:.4g}, {known[at]:.4g} at {over} {at}, {sides[1]:.4g}")
    return _majority(words, notes, f"too few points: no group has {over} {at} and both its neighbours")


@rule("order")
def order(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Decide whether `metric` rises (or falls) along `order`, a list of strategies or `select` mappings.

    One pair reversed by more than `tolerance` contradicts the order; it is confirmed when no pair is and most
    agree by more than that. The numbers name Kendall's tau: 1 for the claimed order, -1 for its reverse; of
    several repetitions also the least and the largest of theirs.
    """
    expect, bound = claim["expect"], 1 + claim.get("tolerance", TOLERANCE)
    if expect not in ("rises", "falls"):
        raise ValueError(f"expect {expect!r} is none of rises, falls")
    places: list[tuple[str, float]] = []
    known = [row for group in groups(rows, {**claim, "within": None}).values() for row in group]
    for entry in claim["order"]:
        chosen = entry if isinstance(entry, Mapping) else {"strategy": entry}
        value = average(select(known, chosen), claim["metric"])
        if value is not None:
            places.append((" ".join(str(word) for word in chosen.values()), value))
    pairs = [(a[1], b[1]) for i, a in enumerate(places) for b in places[i + 1 :]]
    pairs = pairs if expect == "rises" else [(b, a) for a, b in pairs]
    agree, reverse = sum(b > a * bound for a, b in pairs), sum(a > b * bound for a, b in pairs)
    if len(places) < 2:
        return Verdict(UNDECIDED, "too few points: fewer than two of the order's entries were measured")
    shown = ", ".join(f"{name} {value:.4g}" for name, value in places)
    tau = _tau([value for _, value in places], expect)
    correlation = "" if tau is None else f", Kendall's tau {tau:.2f}{_tau_by_repetition(claim, known)}"
    numbers = f"{agree} of {len(pairs)} pairs agree, {reverse} are reversed{correlation}: {shown}"
    word = CONTRADICTED if reverse else CONFIRMED if agree > len(pairs) / 2 else UNDECIDED
    return Verdict(word, numbers if word != UNDECIDED else f"within noise: {numbers}")


def _tau(values: Sequence[float], expect: str) -> float | None:
    """Return Kendall's tau of values with the order that is expected; `None` where they are all the same."""
    places = range(len(values)) if expect == "rises" else range(len(values))[::-1]
    return kendall_tau(list(places), values)


def _tau_by_repetition(claim: Claim, rows: Sequence[Row]) -> str:
    """Return the least and the largest tau of the repetitions that have all of an order, as a text."""
    found = []
    for repetition in sorted({row.get("repetition") or 1 for row in rows}):
        own = [row for row in rows if (row.get("repetition") or 1) == repetition]
        entries = [each if isinstance(each, Mapping) else {"strategy": each} for each in claim["order"]]
        values = [average(select(own, entry), claim["metric"]) for entry in entries]
        known = [value for value in values if value is not None]
        if len(known) == len(values) and (tau := _tau(known, claim["expect"])) is not None:
            found.append(tau)
    return f" ({min(found):.2f} to {max(found):.2f} of {len(found)} repetitions)" if len(found) > 1 else ""


@rule("level")
def level(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Decide whether `metric` is above, below or near `value`, by (within) `tolerance`, in most groups."""
    metric, value, bound = claim["metric"], claim["value"], 1 + claim.get("tolerance", TOLERANCE)
    expect = {"above": "higher", "below": "lower", "near": "same"}[claim["expect"]]
    words, notes = [], []
    for name, group in groups(rows, claim).items():
        found = average(group, metric)
        assert found is not None
        words.append(_ratio_word(found / value, expect, bound))
        notes.append(f"{name}{found:.4g}")
    return _majority(words, notes, f"too few points: no run has {metric}")


@rule("occurs")
def occurs(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Decide whether some run has `metric` equal to `expect`; every status but `missing` counts."""
    known = [row for row in rows if row.get(claim["metric"]) is not None and row["status"] != Status.MISSING]
    having = [row for row in known if row[claim["metric"]] == claim["expect"]]
    numbers = f"{len(having)} of {len(known)} runs have {claim['metric']} {claim['expect']}"
    if not known:
        return Verdict(UNDECIDED, "too few points: no such run was measured")
    return Verdict(CONFIRMED if having else CONTRADICTED, numbers)


@rule("untested")
def untested(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """Leave a claim undecided, because this study cannot decide it; `reason` says why."""
    return Verdict(UNDECIDED, str(claim["reason"]))


def _majority(words: Sequence[str], notes: Sequence[str], empty: str) -> Verdict:
    """Return the word of more than half of the groups, with the counts; otherwise undecided."""
    if not words:
        return Verdict(UNDECIDED, empty)
    counts = Counter(words)
    word, votes = counts.most_common(1)[0]
    word = word if votes > len(words) / 2 else UNDECIDED
    tally = ", ".join(f"{counts[w]} {w}" for w in (CONFIRMED, CONTRADICTED, UNDECIDED) if counts[w])
    tally = f"{tally} of {len(words)} groups. " if len(words) > 1 else ""
    noise = "Within noise, or no clear majority. " if word == UNDECIDED else ""
    rest = f"; and {len(notes) - SHOWN_GROUPS} more" if len(notes) > SHOWN_GROUPS else ""
    return Verdict(word, f"{noise}{tally}{'; '.join(notes[:SHOWN_GROUPS])}{rest}")

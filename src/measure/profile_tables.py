"""Work out the tables of profiled steps: exchanges by kind, and the slowest rank by step.

Only what lies in a rank's steps counts: what was off its clock, as an evaluation, doesn't.
Seconds are of sets of time: what happens twice at the same time counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from src.measure import arithmetic
from src.measure.intervals import Interval, common, length, union, without
from src.measure.rank_profile import RankProfile, Span
from src.run.tables import Row

EXCHANGE_FIELDS = ("rank", "kind", "group", "count", "bytes", "seconds", "hidden_seconds", "hidden_fraction")
STEP_FIELDS = (
    "step", "rank", "seconds", "compute_seconds", "input_seconds", "waiting_seconds",
    "exchange_seconds", "hidden_seconds", "own_seconds", "slowest",
)  # fmt: skip


def exchange_rows(profile: RankProfile) -> Iterator[Row]:
    """Yield a row for each kind and group of exchanges of a rank: the rows of `exchange.csv`.

    `seconds` is how long one of them at least was under way, waiting for others included; `hidden_seconds`
    is the part of it in which the rank computed.
    """
    steps, compute = union(profile.steps.values()), _times(profile.compute)
    for (kind, group), spans in sorted(profile.exchanges.items()):
        inside = [span for span in spans if common([span.interval], steps)]
        if not inside:
            continue
        under_way = common(_times(inside), steps)
        seconds, hidden = _seconds(under_way), _seconds(common(under_way, compute))
        sizes = [span.size for span in inside if span.size is not None]
        yield {
            "rank": profile.rank,
            "kind": kind,
            "group": group,
            "count": len(inside),
            "bytes": sum(sizes) if len(sizes) == len(inside) else None,
            "seconds": seconds,
            "hidden_seconds": hidden,
            "hidden_fraction": arithmetic.fraction(hidden, seconds),
        }


def step_rows(profiles: Sequence[RankProfile]) -> list[Row]:
    """Return a row for each step and rank: the rows of the profile's `steps.csv`.

    `own_seconds` is the step without its waits for the backend; the rank with the most of it is the step's
    `slowest` (1, else 0), for which the others wait.
    """
    rows = []
    for step in sorted({step for profile in profiles for step in profile.steps}):
        own = [_step_row(profile, step) for profile in profiles if step in profile.steps]
        slowest = max(own, key=lambda row: row["own_seconds"])
        rows += [{**row, "slowest": int(row is slowest)} for row in own]
    return rows


def _step_row(profile: RankProfile, step: int) -> Row:
    """Return what a rank did in a step."""
    whole = [profile.steps[step]]
    seconds = _seconds(whole)
    compute = common(_times(profile.compute), whole)
    exchange = common(_times([span for spans in profile.exchanges.values() for span in spans]), whole)
    hidden = common(exchange, compute)
    # Where a strategy can't tell when it waits, it does so for what isn't hidden.
    waits = _times(profile.waiting) or without(exchange, hidden)
    waiting = common(waits, whole)
    return {
        "step": step,
        "rank": profile.rank,
        "seconds": seconds,
        "compute_seconds": _seconds(compute),
        "input_seconds": _seconds(common(_times(profile.input), whole)),
        "waiting_seconds": _seconds(waiting),
        "exchange_seconds": _seconds(exchange),
        "hidden_seconds": _seconds(hidden),
        "own_seconds": round(seconds - _seconds(waiting), 9),
    }


def _times(spans: Sequence[Span]) -> list[Interval]:
    return [span.interval for span in spans]


def _seconds(times: Sequence[Interval]) -> float:
    return round(length(times) / 1e9, 9)

"""Put the repetitions of each configuration into one row: medians, and intervals of what is a ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from src.report import comparison, intervals
from src.report.runs import Row
from src.run.status import MEASURED, Status

# Columns in which one repetition decides for all.
FLAGS = ("probe_flag", "disturbed", "ratio_disturbed", "shared_device", "few_steps", "link_flag")
INTERVAL = ("speedup_low", "speedup_high", "speedup_word")


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each configuration, in the order of its first run, from the merged rows of all runs.

    Figures are medians over the runs that were measured. `speedup_low` and `speedup_high` bound the true
    speed-up with 95 % confidence, and `speedup_word` says what they allow to say; both are `None` for a
    configuration without repetitions. The status is the worst, and parity that of the largest gap.
    """
    members: dict[str, list[Row]] = {}
    for row in rows:
        members.setdefault(row["run"].configuration, []).append(row)
    summed = [_one(name, alike) for name, alike in members.items()]
    for row, alike in zip(summed, members.values(), strict=True):
        row |= _interval(alike, list(members.values()))
    return summed


def attach_intervals(rows: Sequence[Row], summed: Sequence[Row]) -> None:
    """Add the interval of each configuration's speed-up to the rows of its runs, for figures to draw."""
    known = {row["cell"]: row for row in summed}
    for row in rows:
        configuration = known[row["run"].configuration]
        row |= {key: configuration.get(key) for key in INTERVAL}


def _one(name: str, alike: Sequence[Row]) -> Row:
    """Return the row of one configuration from its runs' rows."""
    measured = [row for row in alike if row["status"] in MEASURED] or list(alike)
    keys = dict.fromkeys(key for row in measured for key in row)
    row: Row = {key: _middle(key, [each.get(key) for each in measured]) for key in keys}
    return row | {
        **_worst_parity(measured),
        "cell": name,
        "status": max((each["status"] for each in alike), key=list(Status).index),
        "repetitions": len([each for each in alike if each["status"] in MEASURED]),
        "runs": " ".join(each["cell"] for each in alike),
        "run": measured[0]["run"],
        "repeated": list(measured),
        "baseline": " ".join(
            dict.fromkeys(" ".join(each.get("baseline") or "" for each in measured).split())
        ),
    }


def _worst_parity(rows: Sequence[Row]) -> Row:
    """Return the columns of parity of the repetition with the largest gap, or of the first without one."""
    known = [row for row in rows if row.get("parity_gap") is not None]
    chosen = max(known, key=lambda row: row["parity_gap"]) if known else rows[0]
    return {key: chosen.get(key) for key in ("parity", "parity_gap", "rounding_gap", "parity_reference")}


def _middle(key: str, values: Sequence[Any]) -> Any:
    """Return a column's value for all repetitions: a median, a flag that one sets, or the first."""
    known = [value for value in values if value is not None]
    if key in FLAGS:
        return any(known) if known else None
    numbers = [value for value in known if isinstance(value, int | float) and not isinstance(value, bool)]
    if key == "repetition" or not numbers or len(numbers) < len(known):
        return known[0] if known else None
    return numbers[0] if len(set(numbers)) == 1 else median(numbers)


def _interval(alike: Sequence[Row], every: Sequence[Sequence[Row]]) -> Row:
    """Return the interval of a configuration's speed-up, with the noise of all that share its baseline."""
    bases = (alike[0].get("baseline") or "").split()
    if not bases:
        return {}
    base = _rates([row for rows in every for row in rows if row["cell"] in _baselines(alike)])
    rates = _rates(alike)
    group = [_rates(rows) for rows in every if _baselines(rows) & set(bases)]
    blocks = intervals.common_blocks([base, rates])
    # The noise is that of all configurations over this baseline which were measured as often.
    others = [known for known in group if known != base and set(blocks) <= known.keys()]
    if rates == base or len(blocks) < 2:
        return {}
    complete = [{block: known[block] for block in blocks} for known in (base, *others)]
    interval = intervals.ratio_interval(
        intervals.paired_ratios(rates, base), intervals.pooled_noise(complete)
    )
    low, high = interval or (None, None)
    return dict(zip(INTERVAL, (low, high, intervals.compare(interval)), strict=True))


def as_fast(one: Row, other: Row, group: Sequence[Row]) -> bool:
    """Return whether the repetitions of two configurations tell no difference of speed; false without any.

    The noise is that of all configurations of `group` which were measured as often as these two.
    """
    pair = [_rates(row["repeated"]) for row in (one, other)]
    blocks = intervals.common_blocks(pair)
    tables = [rates for row in group if set(blocks) <= (rates := _rates(row["repeated"])).keys()]
    noise = intervals.pooled_noise([{block: rates[block] for block in blocks} for rates in tables])
    interval = intervals.ratio_interval(intervals.paired_ratios(*pair), noise)
    return intervals.compare(interval) == "as fast as measured"


def _baselines(rows: Sequence[Row]) -> set[str]:
    return {cell for row in rows for cell in (row.get("baseline") or "").split()}


def _rates(rows: Sequence[Row]) -> Mapping[Any, float]:
    """Return the throughput of each run by its block."""
    known = [row for row in rows if row.get("samples_per_second")]
    return {comparison.block(row["run"]): row["samples_per_second"] for row in known}

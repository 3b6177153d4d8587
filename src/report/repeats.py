"""Put the repetitions of each configuration into one row: medians, and intervals of what is a ratio.

A repetition is a *block*: what disturbs the machine for minutes disturbs all runs of a repetition alike, and
cancels in their ratios. The model is that of randomized complete blocks on logarithms (Montgomery, Design and
Analysis of Experiments, 8th ed., section 4.1): log rate = configuration + block + noise, with one variance of
the noise for all configurations that are compared. Three repetitions bear Student's t, but no bootstrap.
Where the best of several is chosen, intervals are Tukey's, which hold all at once (ibid., section 3.5.7).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import Any

from scipy.stats import studentized_range, t

from src.report import comparison
from src.report.runs import Row
from src.run.status import MEASURED, Status

# Columns in which one repetition decides for all.
FLAGS = ("probe_flag", "disturbed", "ratio_disturbed", "shared_device", "few_steps", "link_flag")
INTERVAL = ("speedup_low", "speedup_high", "speedup_word")
CONFIDENCE = 0.95
# Rates of one configuration by block.
Rates = Mapping[Any, float]


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
    blocks = common_blocks([base, rates])
    # The noise is that of all configurations over this baseline which were measured as often.
    others = [known for known in group if known != base and set(blocks) <= known.keys()]
    if rates == base or len(blocks) < 2:
        return {}
    complete = [{block: known[block] for block in blocks} for known in (base, *others)]
    interval = ratio_interval(paired_ratios(rates, base), pooled_noise(complete))
    low, high = interval or (None, None)
    return dict(zip(INTERVAL, (low, high, compare(interval)), strict=True))


def as_fast(one: Row, other: Row, group: Sequence[Row]) -> bool:
    """Return whether the repetitions of two configurations tell no difference of speed; false without any.

    The noise is that of all configurations of `group` which were measured as often as these two.
    """
    tables = [_rates(row["repeated"]) for row in group]
    between = ratio(_rates(one["repeated"]), _rates(other["repeated"]), tables)
    return between is not None and compare(between.interval) == "as fast as measured"


@dataclass(frozen=True)
class Ratio:
    """A figure of one configuration over that of another: the median over blocks, and its 95 % interval.

    Attributes:
        value: the ratio, or of figures that are shares their difference.
        interval: its bounds; `None` without two blocks in which both were measured.
        among: of how many configurations the intervals of all ratios hold at once.
    """

    value: float
    interval: tuple[float, float] | None = None
    among: int = 2


def ratio(of: Rates, to: Rates, pool: Sequence[Rates], among: int = 2) -> Ratio | None:
    """Return the ratio of two configurations' figures, all above 0; `None` where one has none.

    It is taken in each block that both have, or without one over the median of `to`. The noise is
    that of all configurations of the `pool` which were measured in the blocks that the two have in common.
    The interval is one of those that hold at once for all ratios `among` so many configurations.
    """
    if not of or not to:
        return None
    blocks = common_blocks([of, to])
    middle = median(to.values())
    value = median([of[block] / to.get(block, middle) for block in blocks or of])
    tables = [{block: rates[block] for block in blocks} for rates in pool if set(blocks) <= rates.keys()]
    noise = pooled_noise(tables) if len(blocks) > 1 else None
    return Ratio(value, ratio_interval(paired_ratios(of, to), noise, among), among)


def _baselines(rows: Sequence[Row]) -> set[str]:
    return {cell for row in rows for cell in (row.get("baseline") or "").split()}


def _rates(rows: Sequence[Row]) -> Mapping[Any, float]:
    """Return the throughput of each run by its block."""
    known = [row for row in rows if row.get("samples_per_second")]
    return {comparison.block(row["run"]): row["samples_per_second"] for row in known}


@dataclass(frozen=True)
class Noise:
    """The variance of a logarithmic rate within configurations and blocks, and its degrees of freedom."""

    variance: float
    freedom: int


def pooled_noise(table: Sequence[Rates]) -> Noise | None:
    """Estimate the noise from the rates of several configurations, all above 0, in their common blocks.

    With k configurations in n blocks it is the residual mean square of the two-way layout of logarithms, with
    (k - 1)(n - 1) degrees of freedom; `None` without two configurations in two common blocks. Of two
    configurations it is half of the variance of their paired log ratios.
    """
    blocks = common_blocks(table)
    return _residual([[math.log(rates[block]) for block in blocks] for rates in table])


def _residual(layout: Sequence[Sequence[float]]) -> Noise | None:
    """Return the residual mean square of a two-way layout: a row a configuration, a column a block."""
    if len(layout) < 2 or len(layout[0]) < 2:
        return None
    rows = [sum(row) / len(row) for row in layout]
    columns = [sum(column) / len(column) for column in zip(*layout, strict=True)]
    mean = sum(rows) / len(rows)
    squares = sum(
        (value - rows[i] - columns[j] + mean) ** 2
        for i, row in enumerate(layout)
        for j, value in enumerate(row)
    )
    freedom = (len(rows) - 1) * (len(columns) - 1)
    return Noise(squares / freedom, freedom)


def difference(of: Rates, to: Rates, pool: Sequence[Rates], among: int = 2) -> Ratio | None:
    """Return by how much one configuration's share is above another's; `None` where one has none.

    It is that of the medians, and the interval is made as that of a `ratio`, without logarithms.
    """
    if not of or not to:
        return None
    value = median(of.values()) - median(to.values())
    blocks = common_blocks([of, to])
    tables = [shares for shares in pool if set(blocks) <= shares.keys()]
    noise = _residual([[shares[block] for block in blocks] for shares in tables]) if len(blocks) > 1 else None
    if noise is None:
        return Ratio(value)
    centre = sum(of[block] - to[block] for block in blocks) / len(blocks)
    half = _half_width(noise, len(blocks), among)
    return Ratio(value, (centre - half, centre + half), among)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval of the mean of several draws, by Student's t; `None` of fewer than two."""
    if len(values) < 2:
        return None
    centre = sum(values) / len(values)
    half = critical_value(2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return centre - half, centre + half


def common_blocks(table: Sequence[Rates]) -> list[Any]:
    """Return the blocks in which all configurations have a rate, in the first one's order."""
    return [block for block in table[0] if all(block in rates for rates in table)] if table else []


def paired_ratios(rates: Rates, base: Rates) -> list[float]:
    """Return the ratio of two configurations in each of their common blocks."""
    return [rates[block] / base[block] for block in common_blocks([rates, base])]


def ratio_interval(
    ratios: Sequence[float], noise: Noise | None, among: int = 2
) -> tuple[float, float] | None:
    """Return the interval of the true ratio, from paired ratios and the noise of either side.

    It is exp(d -+ c * sqrt(2 * variance / n)), with d the mean of the n logarithms of `ratios`, since each
    ratio has the noise of two rates, and c as `critical_value` has it; `None` where no noise is known.
    """
    if noise is None or not ratios:
        return None
    centre = sum(map(math.log, ratios)) / len(ratios)
    half = _half_width(noise, len(ratios), among)
    return math.exp(centre - half), math.exp(centre + half)


def _half_width(noise: Noise, blocks: int, among: int) -> float:
    """Return half of the interval of a mean difference over so many blocks."""
    return critical_value(among, noise.freedom) * math.sqrt(2 * noise.variance / blocks)


@functools.cache
def critical_value(among: int, freedom: int) -> float:
    """Return how many standard errors of a difference the interval reaches to either side.

    For one difference that is a quantile of Student's t. For those of all pairs `among` more configurations
    it is Tukey's: the studentized range's over the square root of 2.
    """
    if among <= 2:
        return float(t.ppf((1 + CONFIDENCE) / 2, freedom))
    return float(studentized_range.ppf(CONFIDENCE, among, freedom)) / math.sqrt(2)


def compare(interval: tuple[float, float] | None) -> str | None:
    """Return what an interval of a ratio of rates allows to say; `None` without one.

    `faster` or `slower` only where it excludes 1, else `as fast as measured`.
    """
    if interval is None:
        return None
    low, high = interval
    return "faster" if low > 1 else "slower" if high < 1 else "as fast as measured"

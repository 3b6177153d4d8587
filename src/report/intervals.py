"""Compute confidence intervals of ratios between configurations that were measured in the same repetitions.

A repetition is a *block*: what disturbs the machine for minutes disturbs all runs of a repetition alike, and
cancels in their ratios. The model is that of randomized complete blocks on logarithms (Montgomery, Design and
Analysis of Experiments, 8th ed., section 4.1): log rate = configuration + block + noise, with one variance of
the noise for all configurations that are compared. Three repetitions bear Student's t, but no bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import t

CONFIDENCE = 0.95
# Rates of one configuration by block.
Rates = Mapping[Any, float]


@dataclass(frozen=True)
class Noise:
    """The variance of a logarithmic rate within configurations and blocks, and its degrees of freedom."""

    variance: float
    freedom: int


def pooled_noise(table: Sequence[Rates]) -> Noise | None:
    """Estimate the noise from the rates of several configurations, all above 0, in their common blocks.

    With k configurations in n blocks it is the residual mean square of the two-way layout, with
    (k - 1)(n - 1) degrees of freedom; `None` without two configurations in two common blocks. Of two
    configurations it is half of the variance of their paired log ratios.
    """
    blocks = common_blocks(table)
    if len(table) < 2 or len(blocks) < 2:
        return None
    logs = [[math.log(rates[block]) for block in blocks] for rates in table]
    rows = [sum(row) / len(row) for row in logs]
    columns = [sum(column) / len(column) for column in zip(*logs, strict=True)]
    mean = sum(rows) / len(rows)
    squares = sum(
        (value - rows[i] - columns[j] + mean) ** 2
        for i, row in enumerate(logs)
        for j, value in enumerate(row)
    )
    freedom = (len(table) - 1) * (len(blocks) - 1)
    return Noise(squares / freedom, freedom)


def common_blocks(table: Sequence[Rates]) -> list[Any]:
    """Return the blocks in which all configurations have a rate, in the first one's order."""
    return [block for block in table[0] if all(block in rates for rates in table)] if table else []


def paired_ratios(rates: Rates, base: Rates) -> list[float]:
    """Return the ratio of two configurations in each of their common blocks."""
    return [rates[block] / base[block] for block in common_blocks([rates, base])]


def ratio_interval(
    ratios: Sequence[float], noise: Noise | None, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Return the interval of the true ratio by Student's t, from paired ratios and the noise of either side.

    It is exp(d -+ t * sqrt(2 * variance / n)), with d the mean of the n logarithms of `ratios`, since each
    ratio has the noise of two rates; `None` where no noise is known.
    """
    if noise is None or not ratios:
        return None
    centre = sum(map(math.log, ratios)) / len(ratios)
    half = float(t.ppf((1 + confidence) / 2, noise.freedom)) * math.sqrt(2 * noise.variance / len(ratios))
    return math.exp(centre - half), math.exp(centre + half)


def compare(interval: tuple[float, float] | None) -> str | None:
    """Return what an interval of a ratio of rates allows to say; `None` without one.

    `faster` or `slower` only where it excludes 1, else `as fast as measured`.
    """
    if interval is None:
        return None
    low, high = interval
    return "faster" if low > 1 else "slower" if high < 1 else "as fast as measured"

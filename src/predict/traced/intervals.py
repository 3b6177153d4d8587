"""Say how far predictions from operations may be off, by what was published and what is believed."""

from __future__ import annotations

import math
from statistics import NormalDist

from src.predict.constants import PRIORS
from src.predict.intervals import quantile
from src.predict.step import Parts

# Errors, in logarithms, of the rates of one device that were published (`bench.one_device`), in order.
ERRORS = (
    0.016, 0.017, 0.055, 0.086, 0.103, 0.106, 0.118, 0.131, 0.140, 0.149, 0.194, 0.216, 0.261, 0.344, 0.376,
)  # fmt: skip
# How far off other parts of a step may be: what is believed of the constants on which they rest.
EXCHANGE, OTHER = PRIORS["adapter_efficiency"].spread, PRIORS["fixed_seconds"].spread


def width(parts: Parts, level: float) -> float:
    """Return how far a prediction's logarithm may be off at a level as 0.8.

    What computes is off as published rates were. Exchanges, and what a step costs whatever it does, were
    measured nowhere by themselves: what they are a part of is off by as much of what is believed of them.
    """
    times = NormalDist().inv_cdf((1 + level) / 2)
    exchange = times * EXCHANGE * parts.exchange / parts.seconds
    other = times * OTHER * parts.other / parts.seconds
    return math.hypot(quantile(ERRORS, level), exchange, other)

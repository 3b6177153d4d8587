"""Say how far predictions from operations may be off, by what was published and what is believed."""

from __future__ import annotations

import math
from statistics import NormalDist

from src.predict.constants import PRIORS
from src.predict.intervals import quantile
from src.predict.step import Parts

# Errors, in logarithms, of the rates of one device that were published (`bench.one_device`), and of steps of
# an H200 as they had been predicted before any was measured, but for those that its host held up; in order.
ERRORS = (
    0.001, 0.003, 0.004, 0.008, 0.016, 0.024, 0.025, 0.063, 0.071, 0.079, 0.081, 0.088, 0.099, 0.114, 0.119,
    0.124, 0.146, 0.151, 0.156, 0.158, 0.162, 0.197, 0.208, 0.225, 0.233, 0.327, 0.353, 0.356, 0.358, 0.503,
)  # fmt: skip
# How far off other parts of a step may be: what is believed of the constants on which they rest.
EXCHANGE, OTHER = PRIORS["adapter_efficiency"].spread, PRIORS["host_seconds"].spread


def width(parts: Parts, level: float) -> float:
    """Return how far a prediction's logarithm may be off at a level as 0.8.

    What computes is off as those errors are. Exchanges were measured nowhere by themselves, and hosts,
    which start operations, differ: what they are a part of is off by as much of what is believed of them.
    """
    times = NormalDist().inv_cdf((1 + level) / 2)
    exchange = times * EXCHANGE * parts.exchange / parts.seconds
    other = times * OTHER * parts.other / parts.seconds
    return math.hypot(quantile(ERRORS, level), exchange, other)

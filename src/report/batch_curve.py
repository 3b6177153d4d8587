"""Fit how many steps a training needs to reach a target with each batch, and tell of batches between.

The law is S(B) = S_min (1 + B_crit / B) (McCandlish, Kaplan, Amodei and others 2018, An Empirical Model of
Large-Batch Training, section 2.2 and equation 2.7 in steps): with small batches the samples are as many
whatever the batch is, with large ones the steps. At the critical batch both are twice what they are at least.
Where that law holds, its two constants are had from the logarithms of measured steps by Bayes' rule: B_crit
and S_min are thought equally likely at every order of magnitude, the noise has Jeffreys' prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

# A critical batch may be so many times less or more than the batches that were measured.
BEYOND = 64
CELLS = 1201
# Below it two measured batches would be taken for exact ones.
LEAST_NOISE = 0.01


@dataclass(frozen=True)
class Reached:
    """A run that reached the target.

    Attributes:
        batch: samples of a step.
        steps: at the first evaluation that reached it.
        every: steps between evaluations: it was reached at one of the last so many.
    """

    batch: int
    steps: float
    every: float = 0.0

    @property
    def middle(self) -> float:
        """Return the middle of the steps between which the target was reached."""
        return self.steps - min(self.every, self.steps) / 2

    @property
    def spread(self) -> float:
        """Return the standard deviation of the logarithm of an even draw between these steps."""
        return min(self.every, self.steps) / self.middle / math.sqrt(12)


@dataclass(frozen=True)
class Steps:
    """Steps to the target with a batch.

    Attributes:
        median: as likely more as fewer.
        low, high: between which a further training needs so many, in as many of 100 cases as was asked.
        extrapolated: whether no smaller, or no larger, batch was measured.
    """

    median: float
    low: float
    high: float
    extrapolated: bool


@dataclass(frozen=True)
class BatchCurve:
    """A fit of the law to runs with several batches.

    Attributes:
        runs: that reached the target, with two batches or more, and three runs or more.
    """

    runs: tuple[Reached, ...]

    def __post_init__(self) -> None:
        """Raise `ValueError` for runs that tell of no curve."""
        if len({run.batch for run in self.runs}) < 2 or len(self.runs) < 3:
            raise ValueError("a curve needs three runs that reached the target, with two batches or more")

    @cached_property
    def _critical(self) -> np.ndarray:
        """Return the critical batches that are thought of [cells], evenly by their logarithms."""
        batches = [run.batch for run in self.runs]
        return np.geomspace(min(batches) / BEYOND, max(batches) * BEYOND, CELLS)

    @cached_property
    def _fits(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return of each critical batch its probability, log S_min and the noise of a logarithm, all [cells].

        The steps' least number and the noise are integrated out: with n runs a critical batch whose squares
        sum to Q has a probability as Q^(-(n - 1) / 2).
        """
        logs = np.log([run.middle for run in self.runs])
        shape = np.log1p(self._critical[:, None] / np.array([run.batch for run in self.runs]))
        least = (logs - shape).mean(1)
        squares = ((logs - shape - least[:, None]) ** 2).sum(1)
        # Where between two evaluations a target was reached isn't known.
        squares += sum(max(run.spread, LEAST_NOISE) ** 2 for run in self.runs)
        freedom = len(self.runs) - 1
        weight = squares ** (-freedom / 2)
        return weight / weight.sum(), least, np.sqrt(squares / freedom)

    @property
    def critical_batch(self) -> float:
        """Return the median of the critical batch, in samples."""
        return self._quantile(0.5)

    def critical_interval(self, level: float) -> tuple[float | None, float | None]:
        """Return between which samples the critical batch lies; `None` for a side that runs don't bound."""
        low, high = self._quantile((1 - level) / 2), self._quantile((1 + level) / 2)
        # Where the last batches that are thought of are as good as these bounds, so is any further one.
        as_good = math.exp(-(NormalDist().inv_cdf((1 + level) / 2) ** 2) / 2) * self._fits[0].max()
        first, last = self._fits[0][[0, -1]]
        return (low if first < as_good else None), (high if last < as_good else None)

    def _quantile(self, share: float) -> float:
        place = int(np.searchsorted(np.cumsum(self._fits[0]), share))
        return float(self._critical[min(place, CELLS - 1)])

    def drawn_critical(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Draw so many critical batches, as likely as they are."""
        return generator.choice(self._critical, count, p=self._fits[0])

    def at(self, batch: float, level: float = 0.8, seed: int = 0, count: int = 20_000) -> Steps:
        """Return the steps of a further training with a batch, by so many draws from a seed."""
        generator = np.random.default_rng(seed)
        weight, least, noise = self._fits
        cells = generator.choice(CELLS, count, p=weight)
        freedom = len(self.runs) - 1
        # Of S_min the mean of the runs tells, and a further run has noise of its own.
        off = noise[cells] * math.sqrt(1 + 1 / len(self.runs)) * generator.standard_t(freedom, count)
        logs = least[cells] + np.log1p(self._critical[cells] / batch) + off
        low, middle, high = np.exp(np.quantile(logs, [(1 - level) / 2, 0.5, (1 + level) / 2]))
        batches = [run.batch for run in self.runs]
        return Steps(float(middle), float(low), float(high), not min(batches) <= batch <= max(batches))

    def apart(self, one: float, other: float, level: float) -> float:
        """Return how far the logarithm of the ratio of two batches' steps may be off, at a level."""
        weight, _, _ = self._fits
        logs = np.log1p(self._critical / one) - np.log1p(self._critical / other)
        order = np.argsort(logs)
        shares = np.cumsum(weight[order])
        low, middle, high = logs[order][
            np.searchsorted(shares, [(1 - level) / 2, 0.5, (1 + level) / 2]).clip(max=CELLS - 1)
        ]
        return float(max(high - middle, middle - low))


def ratio_of_critical(
    one: BatchCurve, other: BatchCurve, level: float = 0.95, seed: int = 0, count: int = 100_000
) -> tuple[float, float]:
    """Return between which the ratio of two curves' critical batches lies, by so many draws from a seed."""
    generator = np.random.default_rng(seed)
    ratios = one.drawn_critical(generator, count) / other.drawn_critical(generator, count)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def rank_of(steps: Sequence[float | None]) -> float:
    """Return by what a rate is ranked: the median of its runs' steps, of which an unreached one has none."""
    return float(np.median([math.inf if each is None else each for each in steps]))

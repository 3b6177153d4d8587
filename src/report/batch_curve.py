"""Fit how many steps a training needs to reach a target with each batch, and tell of batches between.

The law is S(B) = S_min (1 + B_crit / B), which is (S / S_min - 1) (E / E_min - 1) = 1 of samples E = S B with
B_crit = E_min / S_min (McCandlish, Kaplan, Amodei and others 2018, An Empirical Model of Large-Batch
Training): with small batches the samples are as many whatever the batch is, with large ones the steps. At the
critical batch both are twice what they are at least.
Its two constants are had from the logarithms of measured steps by Bayes' rule: B_crit and S_min are thought
equally likely at every order of magnitude, the noise has Jeffreys' prior. The law needn't hold: with a batch
that was measured the runs tell, not the law, which tells between and beyond such batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from scipy.stats import t as student

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
    def _fits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return of each critical batch its probability and log S_min, both [cells].

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
        return weight / weight.sum(), least

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

    def law(self, batch: float) -> float:
        """Return the steps with a batch by the law, with the medians of its constants."""
        place = int(np.searchsorted(self._critical, self.critical_batch))
        return math.exp(float(self._fits[1][place]) + math.log1p(self.critical_batch / batch))

    @cached_property
    def _means(self) -> dict[int, tuple[float, int]]:
        """Return by batch, in order, the mean of its runs' logarithms over the law's, and their number."""
        found = {}
        for batch in sorted({run.batch for run in self.runs}):
            logs = [math.log(run.middle) for run in self.runs if run.batch == batch]
            found[batch] = sum(logs) / len(logs) - math.log(self.law(batch)), len(logs)
        return found

    @cached_property
    def _noise(self) -> tuple[float, int]:
        """Return by how much a run's logarithm scatters about its batch's mean, and its degrees of freedom.

        Without repetitions it is the noise about the law.
        """
        squares, freedom = 0.0, 0
        for batch in self._means:
            logs = np.log([run.middle for run in self.runs if run.batch == batch])
            squares += float(((logs - logs.mean()) ** 2).sum())
            freedom += len(logs) - 1
        if not freedom:
            squares, freedom = sum(off**2 for off, _ in self._means.values()), max(1, len(self.runs) - 2)
        unknown = sum(max(run.spread, LEAST_NOISE) ** 2 for run in self.runs) / len(self.runs)
        return math.sqrt(squares / freedom + unknown), freedom

    def _about(self, batch: float) -> tuple[float, float, float]:
        """Return the logarithm of a batch's steps, the variance of that mean, and what the law leaves open.

        The law tells how steps go between batches that were measured, and at these the runs do. Beyond them
        what runs leave open of the law counts, as half of an interval that holds in 80 of 100 cases.
        """
        known = list(self._means)
        logs = np.log(known)
        at = float(np.clip(math.log(batch), logs[0], logs[-1]))
        above = min(max(int(np.searchsorted(logs, at)), 1), len(known) - 1)
        share = (at - logs[above - 1]) / (logs[above] - logs[above - 1])
        (low, fewer), (high, more) = (self._means[known[place]] for place in (above - 1, above))
        variance = self._noise[0] ** 2 * ((1 - share) ** 2 / fewer + share**2 / more)
        left_open = 0.0
        if not known[0] <= batch <= known[-1]:
            # Where the law was off it may be so further on.
            worst = max(abs(off) for off, _ in self._means.values())
            left_open = math.hypot(self._left_open(batch, math.exp(at)), worst)
        middle = math.log(self.law(batch)) + (1 - share) * low + share * high
        return middle, variance, left_open

    def _left_open(self, one: float, other: float) -> float:
        """Return how far the law's ratio of two batches' steps may be off, as half of an 80 % interval."""
        logs = np.log1p(self._critical / one) - np.log1p(self._critical / other)
        order = np.argsort(logs)
        places = np.searchsorted(np.cumsum(self._fits[0][order]), [0.1, 0.9]).clip(max=CELLS - 1)
        low, high = logs[order][places]
        return float(high - low) / 2

    def at(self, batch: float, level: float = 0.8) -> Steps:
        """Return the steps of a further training with a batch."""
        middle, variance, left_open = self._about(batch)
        noise, freedom = self._noise
        off = _times(level, freedom) * math.sqrt(noise**2 + variance)
        off = math.hypot(off, left_open * _times(level) / _times(0.8))
        known = list(self._means)
        middle, low, high = (math.exp(middle + each) for each in (0.0, -off, off))
        return Steps(middle, low, high, not known[0] <= batch <= known[-1])

    def apart(self, one: float, other: float, level: float) -> float:
        """Return how far the logarithm of the ratio of two batches' steps may be off, at a level."""
        (_, first, open_one), (_, second, open_other) = self._about(one), self._about(other)
        off = _times(level, self._noise[1]) * math.sqrt(first + second)
        return math.hypot(off, max(open_one, open_other) * _times(level) / _times(0.8))


def _times(level: float, freedom: int | None = None) -> float:
    """Return how many standard deviations hold at a level, by Student's t of a freedom, or a normal law."""
    share = (1 + level) / 2
    return NormalDist().inv_cdf(share) if freedom is None else float(student.ppf(share, freedom))


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

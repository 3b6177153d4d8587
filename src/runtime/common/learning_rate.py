"""Decide the learning rate of each step, in the same way for every framework and strategy.

With r the scaled rate, s where the warm-up begins, n the steps of the warm-up, T the planned steps (epochs x
steps of an epoch) and f the schedule, step k, counted from 1 over all epochs, is taken at the rate

    (s + (r - s) min(1, k / n)) f((k - 1) / T)        or r f((k - 1) / T) without a warm-up (n = 0)

    r   lr, scaled by `scale_lr` (`src.config.learning_rates`)
    s   lr where r is larger, as in Goyal 2017, section 2.2 (gradual warm-up); otherwise 0
    f   1 (`constant`); (1 + cos(pi x)) / 2 (`cosine`: Loshchilov 2017, equation 5, without restarts); 0.1 to
        the number of the points 1/3, 2/3 and 8/9 that x has reached (`step`: Goyal 2017, section 5.1, where
        these are epochs 30, 60 and 80 of 90)

Training time decides nothing: a training that `max_minutes` stops has had the first rates of a whole one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from src.config import Config, learning_rates
from src.data import order

# Parts of a training after which `step` divides the rate by ten.
DROPS = (Fraction(1, 3), Fraction(2, 3), Fraction(8, 9))


@dataclass(frozen=True)
class LearningRate:
    """The learning rate as a function of the steps that are done.

    Attributes:
        start: where the warm-up begins.
        peak: the scaled rate, where the warm-up ends.
        warmup_steps: steps of the warm-up; 0 without one.
        schedule: `constant`, `cosine` or `step`.
        steps: planned steps of the whole training.
    """

    start: float
    peak: float
    warmup_steps: int
    schedule: str
    steps: int

    @classmethod
    def of(cls, config: Config, samples: int) -> LearningRate:
        """Return the learning rate of a configured training on `samples` training samples."""
        settings = config.optimizer
        base = float(settings["lr"])
        peak = learning_rates.scaled(settings, config.global_batch)
        steps = config.epochs * order.steps_per_epoch(samples, config.global_batch)
        start = base if peak > base else 0.0
        return cls(start, peak, settings["warmup_steps"], settings["schedule"], steps)

    @property
    def constant(self) -> bool:
        """Return whether all steps have the same rate."""
        return self.schedule == "constant" and not self.warmup_steps

    @property
    def changing_steps(self) -> int:
        """Return the number of first steps after which the rate doesn't change any more."""
        return self.warmup_steps if self.schedule == "constant" else max(self.steps, self.warmup_steps)

    def __call__(self, done: int) -> float:
        """Return the rate of the step that follows `done` whole steps, over all epochs.

        A step past the planned ones has the rate of the last one.
        """
        rate = self.peak
        if done + 1 < self.warmup_steps:
            rate = self.start + (self.peak - self.start) * (done + 1) / self.warmup_steps
        past = min(done, self.steps - 1)
        if self.schedule == "cosine":
            return rate * (1 + math.cos(math.pi * past / self.steps)) / 2
        if self.schedule == "step":
            # Whole numbers: a drop comes at the very step, whatever a quotient is rounded to.
            return rate / 10 ** sum(past * drop.denominator >= self.steps * drop.numerator for drop in DROPS)
        return rate

"""Split each global batch among data-parallel ranks: equally, as the user says, or by their speeds.

Ranks wait for the slowest one, so a batch of B samples is done soonest when all ranks take equally long. Then
rank r's share is in proportion to its speed v_r, B v_r / sum(v), and each rank takes B / sum(v) seconds. A
rank's speed is its samples over the seconds that it computed itself, waiting left out. The speed is measured
at the present share and includes the fixed costs of a step, so the rule is applied again and again, until it
changes nothing. It settles only at shares with which all ranks take equally long.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from src.config import Config
from src.config.batch_shares import apportion

# Steps over which a rank's speed is measured, the first one left out: at the start and after a change of
# shares, when these may be far from right, and later.
SHORT_WINDOW, WINDOW = 4, 10
# The least part of a step's time that a change of shares must save: less is noise.
GAIN = 0.03
# Samples that automatic shares leave in a rank's micro-batch, for BatchNorm has statistics of its own there.
# Errors rise below 8 (Wu & He 2018, Group Normalization, figure 1); 2 broke the training of ResNet-18.
LEAST_MICROBATCH = 8


class BatchSplit:
    """A division of the global batch among ranks, which is the same on every rank at the same step.

    Attributes:
        automatic: whether the shares follow the ranks' speeds.
        counts: how many samples of a batch each rank takes, by rank.
    """

    def __init__(self, config: Config) -> None:
        chosen, degree = config.batch_shares, config.data_parallel_degree
        self.automatic = chosen == "auto"
        self._batch = config.global_batch
        equal = [config.global_batch // degree] * degree
        self._least = min(LEAST_MICROBATCH * config.microbatches, equal[0])
        self.counts = equal if isinstance(chosen, str) else list(chosen)

    def part(self, rank: int, items: int | None = None) -> slice:
        """Return the slice of a batch that rank `rank` takes, or that of `items` items in proportion."""
        first, last = sum(self.counts[:rank]), sum(self.counts[: rank + 1])
        if items is None:
            return slice(first, last)
        return slice(items * first // self._batch, items * last // self._batch)

    def rebalance(self, speeds: Sequence[float]) -> bool:
        """Split the batch by the ranks' latest speeds, and return whether the shares changed.

        Args:
            speeds: samples a second of each rank, by rank.
        """
        proportional = apportion(self._batch, speeds, self._least)
        seconds = max(count / speed for count, speed in zip(self.counts, speeds, strict=True))
        if proportional == self.counts or self._batch / sum(speeds) > (1 - GAIN) * seconds:
            return False
        self.counts = proportional
        return True


class SpeedWindow:
    """A meter of one rank's speed over the last steps."""

    def __init__(self) -> None:
        self._speeds: list[float] = []
        self._length = SHORT_WINDOW

    def add(self, samples: int, seconds: float) -> float | None:
        """Add a step; return the median speed of the window, in samples a second, if this step completes it.

        Otherwise return `None`. After a completed window a new one begins.

        Args:
            samples: how many samples the rank trained on in this step.
            seconds: how long the rank computed in this step, without waiting for others.
        """
        self._speeds.append(samples / seconds)
        if len(self._speeds) < self._length:
            return None
        # The first step is slower: memory and caches adapt to another share.
        speed = median(self._speeds[1:])
        self._speeds.clear()
        self._length = WINDOW
        return speed


class MeasuredSpeeds:
    """The speeds of all ranks, in a process that hears of every rank's steps; batches are split by them."""

    def __init__(self, split: BatchSplit, ranks: int) -> None:
        """Split batches by `split`, once the speeds of so many ranks are measured."""
        self._split = split
        self._windows = [SpeedWindow() for _ in range(ranks)]
        self._speeds: dict[int, float] = {}

    def add(self, rank: int, samples: int, seconds: float) -> None:
        """Add a step to its rank's speed, as to a `SpeedWindow`; split anew once all are measured."""
        speed = self._windows[rank].add(samples, seconds)
        if speed is not None:
            self._speeds[rank] = speed
        if len(self._speeds) == len(self._windows):
            if self._split.rebalance([self._speeds[each] for each in range(len(self._windows))]):
                self._windows = [SpeedWindow() for _ in self._windows]
            self._speeds.clear()

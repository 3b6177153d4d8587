"""How many samples of a global batch each data-parallel rank takes: as many, as given, or by its speed.

Ranks wait for the slowest one, so a batch is done soonest when all take equally long: rank r's share is in
proportion to its speed v_r, B v_r / sum(v), and then each takes B / sum(v) seconds. A speed is samples over
the seconds that the rank itself computed, waiting left out. It is measured at the present share, fixed costs
included, so that the rule is repeated until it has nothing left to change: whatever a step's time is made of,
it rests only where all take equally long.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from src.config import Config

# Steps between two looks at the speeds, of which the first is left out: at the start
# and after a change, when much may be wrong, and later.
SHORT, WINDOW = 4, 10
# What a change must save of a step's time: less is noise.
GAIN = 0.03
# Samples that automatic shares leave in a rank's micro-batch, for BatchNorm has statistics of its own there.
# Errors rise below 8 (Wu & He 2018, Group Normalization, figure 1); 2 broke the training of ResNet-18.
ENOUGH = 8


def apportion(batch: int, speeds: Sequence[float], least: int = 1) -> list[int]:
    """Whole shares of `batch` in proportion to speeds, by largest remainders, and `least` at least."""
    exact: dict[int, float] = {}
    while len(exact) < len(speeds):
        others = [rank for rank in range(len(speeds)) if rank not in exact]
        spare, total = batch - sum(exact.values()), sum(speeds[rank] for rank in others)
        low = {rank: float(least) for rank in others if spare * speeds[rank] / total < least}
        exact |= low or {rank: spare * speeds[rank] / total for rank in others}
    shares = [int(exact[rank]) for rank in range(len(speeds))]
    short = batch - sum(shares)
    for rank in sorted(exact, key=lambda r: (shares[r] - exact[r], r))[:short]:
        shares[rank] += 1
    return shares


class Shares:
    """The ranks' shares, the same on every rank at the same step."""

    def __init__(self, config: Config) -> None:
        chosen = config.batch_shares
        self.automatic = chosen == "auto"
        self._batch = config.global_batch
        workers = config.workers if config.strategy["supports"]["shares_batch"] else 1
        equal = [config.global_batch // workers] * workers
        self._least = min(ENOUGH * config.microbatches, equal[0])
        self.counts = list(chosen) if isinstance(chosen, list | tuple) else equal

    def of(self, rank: int, items: int | None = None) -> slice:
        """Where rank `rank`'s share of a batch is, or of so many items in the same proportion."""
        first, last = sum(self.counts[:rank]), sum(self.counts[: rank + 1])
        if items is None:
            return slice(first, last)
        return slice(items * first // self._batch, items * last // self._batch)

    def rebalance(self, speeds: Sequence[float]) -> bool:
        """Shares by the ranks' speeds lately, in samples a second; whether they changed."""
        wanted = apportion(self._batch, speeds, self._least)
        now = max(count / speed for count, speed in zip(self.counts, speeds, strict=True))
        if wanted == self.counts or self._batch / sum(speeds) > (1 - GAIN) * now:
            return False
        self.counts = wanted
        return True


class Window:
    """One rank's speed over the last steps."""

    def __init__(self) -> None:
        self._speeds: list[float] = []
        self._length = SHORT

    def add(self, samples: int, seconds: float) -> float | None:
        """Of one more step; the median, in samples a second, once there are enough: then it begins anew."""
        self._speeds.append(samples / seconds)
        if len(self._speeds) < self._length:
            return None
        # Memory and caches get used to another share.
        found = median(self._speeds[1:])
        self._speeds.clear()
        self._length = WINDOW
        return found

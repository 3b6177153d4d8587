"""Draw random numbers that are the same on every machine and under every version of numpy.

numpy guarantees the raw stream of a bit generator, but not what `Generator` makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


class Draws:
    """A stream of random numbers, of its own for each pair of `seed` and `stream`."""

    def __init__(self, seed: int, stream: int) -> None:
        self._bits = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64))

    def whole(self, low: int, high: int) -> int:
        """Draw a whole number from `low` to `high`, both included."""
        return low + int(self._bits.random_raw()) % (high - low + 1)

    def between(self, low: float, high: float) -> float:
        """Draw a number from `low` to before `high`."""
        return low + (high - low) * (int(self._bits.random_raw()) >> 11) / (1 << 53)

    def chance(self, share: float) -> bool:
        """Return True in the given share of draws."""
        return self.between(0, 1) < share

    def pick(self, items: Sequence[Item]) -> Item:
        """Draw one of `items`, all equally likely."""
        return items[self.whole(0, len(items) - 1)]

    def grid(self, *shape: int) -> np.ndarray:
        """Draw an array uint8 of `shape`, all values equally likely."""
        count = int(np.prod(shape))
        raw = np.asarray(self._bits.random_raw(-(-count // 8)), dtype="<u8")
        return raw.view(np.uint8)[:count].reshape(shape)

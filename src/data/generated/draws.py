"""Draw single random numbers, the same ones on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

import numpy as np

from src.data.generated.randomness import Stream

Item = TypeVar("Item")


class Draws(Stream):
    """A stream of random numbers that are drawn one by one."""

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
        return self.octets(prod(shape)).reshape(shape)

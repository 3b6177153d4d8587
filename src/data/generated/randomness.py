"""Draw random numbers that are the same on every machine and under every version of numpy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

import numpy as np

from src.data.random_streams import RandomStream, philox

Item = TypeVar("Item")


class Stream:
    """A stream of random integers that depends on a seed and a name alone.

    Everything is made from raw output, which every numpy has, by integer arithmetic.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._bits = philox(RandomStream.STAND_IN, seed, name)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        """Draw integers from `low` to before `high`, at most 2**31 apart, as int64 [*shape]."""
        words = self._bits.random_raw(prod(shape)).reshape(shape)
        return low + (((words >> np.uint64(32)) * np.uint64(high - low)) >> np.uint64(32)).astype(np.int64)

    def octets(self, count: int) -> np.ndarray:
        """Draw `count` integers from 0 to 255, as uint8 [count]."""
        # Little-endian on every machine.
        words = self._bits.random_raw((count + 7) // 8).astype("<u8")
        return words.view(np.uint8)[:count]

    def shuffled(self, values: np.ndarray) -> np.ndarray:
        """Return the values in random order."""
        return values[np.argsort(self._bits.random_raw(len(values)), kind="stable")]


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

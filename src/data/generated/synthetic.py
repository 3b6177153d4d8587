"""Generate random images in memory, for which nothing is fetched, prepared or read.

A training on them shows what a model and a strategy can do where input costs next to nothing. They are the
rows of a small pool, again and again, which is the same in every process and on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from src.data.arrays import Arrays, Split
from src.data.random_streams import RandomStream, philox

# A pool is small enough to stay in a processor's last cache or near it.
POOL_SAMPLES = 256
POOL_BYTES = 32 << 20


@dataclass(frozen=True)
class PooledRows:
    """An array [samples, ...] whose row i is row i modulo its length of a pool [rows, ...].

    Like those of an array, its rows are indexed by a number, a slice or an array of numbers.
    """

    pool: np.ndarray
    samples: int

    def __len__(self) -> int:
        return self.samples

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape that the array would have."""
        return (self.samples, *self.pool.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of a value."""
        return self.pool.dtype

    def __getitem__(self, rows: int | slice | np.ndarray) -> np.ndarray:
        """Copy rows out of the pool.

        Raises:
            IndexError: for a row past the end, or before the beginning.
        """
        indices = np.arange(*rows.indices(self.samples)) if isinstance(rows, slice) else np.asarray(rows)
        if indices.size and not 0 <= indices.min() <= indices.max() < self.samples:
            raise IndexError(f"rows {indices.min()} to {indices.max()} of {self.samples}")
        return self.pool[indices % len(self.pool)]


def make(dataset: Mapping[str, Any]) -> Arrays:
    """Generate a dataset by its `shape`, `classes`, `samples`, `test_samples`, `generator_seed` and limits.

    Pixels are evenly distributed over 0 to 255, and so are labels over the classes.
    """
    height, width, channels = shape = tuple(dataset["shape"])
    rows = max(1, min(POOL_SAMPLES, POOL_BYTES // prod(shape)))
    generator = philox(RandomStream.SYNTHETIC, dataset["generator_seed"])
    # Raw words, and their lowest byte first: the same values with every numpy, and on every machine.
    words = generator.random_raw(-(-rows * prod(shape) // 8)).astype("<u8")
    images = words.view(np.uint8)[: rows * prod(shape)].reshape(rows, *shape)
    labels = (generator.random_raw(rows) % np.uint64(dataset["classes"])).astype(np.int64)

    def split(samples: int, limit: int | None) -> Split:
        count = min(samples, limit or samples)
        # A split asks no more of its arrays than what these rows can do.
        return Split(*(cast(tuple[np.ndarray, ...], (PooledRows(pool, count),)) for pool in (images, labels)))

    values = np.arange(256) / 255
    return Arrays(
        split(dataset["samples"], dataset.get("limit")),
        split(dataset["test_samples"], dataset.get("test_limit")),
        shape=(height, width, channels),
        names=tuple(map(str, range(dataset["classes"]))),
        mean=(float(values.mean()),) * channels,
        std=(float(values.std()),) * channels,
        data_source=dataset["source"],
    )

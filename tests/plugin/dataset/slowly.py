"""A dataset from outside that is made in memory, and whose samples take their time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from src.data.arrays import Arrays, Split


@dataclass(frozen=True)
class SlowRows:
    """Rows that are read as slowly as from a network."""

    rows: np.ndarray
    seconds: float

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def __getitem__(self, rows: Any) -> np.ndarray:
        time.sleep(self.seconds)
        return self.rows[rows]


def make(dataset: Mapping[str, Any]) -> Arrays:
    """Random images and labels, each batch of which takes `seconds` to read."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, dataset["samples"])
    images: Any = SlowRows(
        generator.integers(0, 256, (len(labels), 16, 16, 1), dtype=np.uint8), dataset["seconds"]
    )
    split = Split((images,), (labels,))
    test = Split((images.rows[:100],), (labels[:100],))
    return Arrays(split, test, (16, 16, 1), tuple("0123456789"), (0.5,), (0.3,), dataset["source"])

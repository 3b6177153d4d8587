"""A dataset from outside with two inputs, and two targets that are no classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from src.data.samples import ArraySource, Splits

NAMES = ("first", "second", "third", "fourth")


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Images and float32 [3] with float32 [4], of which an int64 [4] says which are known; uneven numbers."""

    def split(samples: int, seed: int) -> ArraySource:
        generator = np.random.default_rng(seed)
        images = generator.integers(0, 256, (samples, 8, 8, 1), dtype=np.uint8)
        vectors = generator.normal(size=(samples, 3)).astype(np.float32)
        rows = images.mean((2, 3)) / 255
        angles = np.stack([rows[:, :4].mean(1), rows[:, 4:].mean(1), vectors[:, 0], vectors[:, 1]], 1)
        chance = generator.uniform(0, 1, (samples, 1))
        known = (generator.uniform(size=(samples, 4)) < chance).astype(np.int64)
        return ArraySource((images, vectors), (angles.astype(np.float32), known))

    return Splits(split(1024, 1), split(256, 2), names=NAMES)

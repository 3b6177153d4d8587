"""Generate a dataset of random images, for machines that can download none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from src.data.arrays import Splits

CLASSES = 10


def dataset(side: int, channels: int, train: int, test: int) -> dict[str, Any]:
    """Return the configuration of a dataset of `train` and `test` images of `side` x `side` pixels."""
    return {
        "name": f"random_{side}x{side}x{channels}",
        "reader": "bench.synthetic.read",
        "data_source": "generated",
        "files": {},
        "sources": [],
        "options": {"side": side, "channels": channels, "train": train, "test": test},
        "limit": None,
        "test_limit": None,
    }


def read(raw: Path, options: Mapping[str, int]) -> Splits:
    """Generate the images and labels of a dataset's `options`; nothing is read from `raw`."""
    generator = np.random.default_rng(0)
    shape = (options["side"], options["side"], options["channels"])
    counts = {"train": options["train"], "test": options["test"]}
    arrays: dict[str, np.ndarray] = {}
    for part, count in counts.items():
        arrays[f"{part}_images"] = generator.integers(0, 256, (count, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = generator.integers(0, CLASSES, count)
    return Splits(**arrays, names=tuple(map(str, range(CLASSES))))

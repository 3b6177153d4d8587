"""Generate a dataset of random images, for machines that can download none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from src.data.samples import ArraySource, Splits

CLASSES = 10


def dataset(side: int, channels: int, train: int, test: int) -> dict[str, Any]:
    """Return the configuration of a dataset of `train` and `test` images of `side` x `side` pixels."""
    return {
        "name": f"random_{side}x{side}x{channels}",
        "reader": "bench.synthetic.read",
        "source": "generated",
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

    def split(count: int) -> ArraySource:
        images = generator.integers(0, 256, (count, *shape), dtype=np.uint8)
        return ArraySource((images,), (generator.integers(0, CLASSES, count),))

    return Splits(split(options["train"]), split(options["test"]), names=tuple(map(str, range(CLASSES))))

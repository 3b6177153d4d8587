"""A dataset whose original needs a registration, with a generator of stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from src.data.samples import ArraySource, Splits

SIDE = 16
SAMPLES = {"train": 10_000, "test": 5_000}


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Read records of a label and an image, a byte a value."""

    def split(name: str) -> ArraySource:
        records = np.fromfile(raw / f"{name}.bin", np.uint8).reshape(-1, 1 + SIDE * SIDE)
        images = records[:, 1:].reshape(-1, SIDE, SIDE, 1)
        return ArraySource((images,), (records[:, 0].astype(np.int64),))

    return Splits(split("train"), split("test"), names=("upper", "lower"))


def write(target: Path, *, fraction: float, seed: int, options: dict[str, Any]) -> None:
    """Write noise that is brighter in its upper or its lower half; the label says where."""
    generator = np.random.default_rng(seed)
    for name, whole in SAMPLES.items():
        count = round(whole * fraction)
        labels = generator.integers(0, 2, count, dtype=np.uint8)
        images = generator.integers(0, 128, (count, SIDE, SIDE), dtype=np.uint8)
        images[labels == 0, : SIDE // 2] += options["contrast"]
        images[labels == 1, SIDE // 2 :] += options["contrast"]
        records = np.concatenate([labels[:, np.newaxis], images.reshape(count, -1)], axis=1)
        records.tofile(target / f"{name}.bin")

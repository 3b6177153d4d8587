"""Read idx data and enlarge its images, as a stand-in for a dataset of larger ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from src.data.readers import idx
from src.data.samples import ArraySource, SampleSource, Splits


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Read the first `options["train"]` and `options["test"]` samples, images resized to `options["size"]`.

    Images become uint8 [samples, size, size, 1] by bilinear interpolation.

    Raises:
        DataError: for a file that is not idx, is cut short, or disagrees with its partner.
    """
    whole = idx.read(raw, options)
    size = options["size"]
    train = _enlarged(whole.train, options["train"], size)
    return Splits(train, _enlarged(whole.test, options["test"], size), whole.names)


def _enlarged(source: SampleSource, count: int, size: int) -> ArraySource:
    samples = source.read(0, count)
    return ArraySource((resized(samples.inputs[0], size),), samples.targets)


def resized(images: np.ndarray, size: int) -> np.ndarray:
    """Resize images, uint8 [samples, height, width, 1], to uint8 [samples, size, size, 1]."""
    grown = np.empty((len(images), size, size, 1), dtype=np.uint8)
    for place, image in enumerate(images):
        grown[place, :, :, 0] = np.asarray(
            Image.fromarray(image[:, :, 0]).resize((size, size), Image.Resampling.BILINEAR)
        )
    return grown

"""Read idx data and enlarge its images, as a stand-in for a dataset of larger ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from src.data import idx
from src.data.arrays import Splits


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Read the first `options["train"]` and `options["test"]` samples, images resized to `options["size"]`.

    Images become uint8 [samples, size, size, 1] by bilinear interpolation.

    Raises:
        DataError: for a file that is not idx, is cut short, or disagrees with its partner.
    """
    whole = idx.read(raw, options)
    train, test, size = options["train"], options["test"], options["size"]
    return Splits(
        resized(whole.train_images[:train], size),
        whole.train_labels[:train],
        resized(whole.test_images[:test], size),
        whole.test_labels[:test],
        whole.names,
    )


def resized(images: np.ndarray, size: int) -> np.ndarray:
    """Resize images, uint8 [samples, height, width, 1], to uint8 [samples, size, size, 1]."""
    grown = np.empty((len(images), size, size, 1), dtype=np.uint8)
    for place, image in enumerate(images):
        grown[place, :, :, 0] = np.asarray(
            Image.fromarray(image[:, :, 0]).resize((size, size), Image.Resampling.BILINEAR)
        )
    return grown

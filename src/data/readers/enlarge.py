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
    images = (Image.fromarray(image[:, :, 0]) for image in samples.inputs[0])
    grown = [np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)) for image in images]
    return ArraySource((np.array(grown, dtype=np.uint8).reshape(-1, size, size, 1),), samples.targets)

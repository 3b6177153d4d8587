"""Read ImageNet 64x64 as it is published: npz files in zip archives.

Each npz file has `data`, uint8 [images, 12288]: 64 x 64 values of red, as many of green and as many of blue,
row by row; and `labels` from 1 to 1000. train_data_batch_1.npz to train_data_batch_10.npz are for training
and have the training set's `mean` as well, which isn't used here; val_data.npz is for testing.

Source: Chrabaszcz, Loshchilov, Hutter, "A downsampled variant of ImageNet as an alternative to the CIFAR
datasets" (2017), and https://patrykchrabaszcz.github.io/Imagenet32/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from src.data.errors import DataError
from src.data.readers.npz import load_member, map_member
from src.data.readers.planes import JoinedSource, PlaneImages
from src.data.readers.raw_files import check_counts, check_labels, find_file
from src.data.samples import Splits

SIDE, CHANNELS, CLASSES = 64, 3, 1000
PIXELS = CHANNELS * SIDE * SIDE
TRAIN_FILES = tuple(f"train_data_batch_{number}.npz" for number in range(1, 11))
TEST_FILE = "val_data.npz"
FIRST_LABEL = 1


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Read the eleven npz files in the folder `raw` or below it; images are mapped, not loaded.

    Compressed ones are unpacked beside themselves first. Images are uint8 [64, 64, 3], or [size, size, 3]
    with `options["size"]`; labels begin at 0, and class 0 is called "1", the label that the files have.
    `options["counts"]` has the published numbers of `train` and `test` samples, which an original must have.

    Raises:
        DataError: for a missing or unreadable file, images or labels of other shapes or types, a label
            outside 1 to 1000, and other numbers of samples than the published ones.
    """
    size = options.get("size")
    train = JoinedSource(tuple(_source(find_file(raw, name), size) for name in TRAIN_FILES))
    test = _source(find_file(raw, TEST_FILE), size)
    check_counts({"train": len(train), "test": len(test)}, options)
    return Splits(train, test, tuple(str(FIRST_LABEL + place) for place in range(CLASSES)))


def _source(path: Path, size: int | None) -> PlaneImages:
    """Look at an npz file and return it as a source of samples."""
    images, labels = map_member(path, "data"), load_member(path, "labels")
    if images.dtype != "|u1" or images.shape[1:] != (PIXELS,) or not images.shape[0]:
        raise DataError(
            f"{path}: data must be uint8 [images, {PIXELS}], got {images.dtype} {list(images.shape)}"
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path}: {images.shape[0]} images, but labels are {labels.dtype} {list(labels.shape)}"
        )
    check_labels(labels.tolist(), FIRST_LABEL, CLASSES, str(path))
    return PlaneImages(images, labels.astype(np.int64) - FIRST_LABEL, SIDE, size)

"""Read the binary version of CIFAR-10.

A file is a sequence of records of 3,073 bytes: a label from 0 to 9, then 32 x 32 bytes of red, as many of
green and as many of blue, row by row. data_batch_1.bin to data_batch_5.bin are for training, test_batch.bin
for testing; batches.meta.txt has the ten names, a line each.

Source: Krizhevsky, "Learning multiple layers of features from tiny images" (2009), and
https://www.cs.toronto.edu/~kriz/cifar.html, section "Binary version".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from src.data.errors import DataError
from src.data.readers.npz import MappedArray
from src.data.readers.planes import JoinedSource, PlaneImages
from src.data.readers.raw_files import check_counts, check_labels, find_file
from src.data.samples import Splits

SIDE, CHANNELS, CLASSES = 32, 3, 10
RECORD_BYTES = 1 + CHANNELS * SIDE * SIDE
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
NAMES_FILE = "batches.meta.txt"


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Read the six files of records in the folder `raw` or below it; images are mapped, not loaded.

    Images are uint8 [32, 32, 3], or [size, size, 3] with `options["size"]`. `options["counts"]` has the
    published numbers of `train` and `test` samples, which an original must have.

    Raises:
        DataError: for a missing file, one that doesn't consist of whole records, a label above 9, other than
            ten names, and other numbers of samples than the published ones.
    """
    names = find_file(raw, NAMES_FILE).read_text(encoding="utf-8").split()
    if len(names) != CLASSES:
        raise DataError(f"{NAMES_FILE} names {len(names)} classes, not {CLASSES}")
    size = options.get("size")
    train = JoinedSource(tuple(_source(find_file(raw, name), size) for name in TRAIN_FILES))
    test = _source(find_file(raw, TEST_FILE), size)
    check_counts({"train": len(train), "test": len(test)}, options)
    return Splits(train, test, tuple(names))


def _source(path: Path, size: int | None) -> PlaneImages:
    """Look at a file of records and return it as a source of samples."""
    present = path.stat().st_size
    if present == 0 or present % RECORD_BYTES:
        raise DataError(
            f"{path} has {present:,} bytes, which is no whole number of records of {RECORD_BYTES:,}: "
            "it is cut short, or isn't of CIFAR-10's binary version"
        )
    records = MappedArray(path, 0, (present // RECORD_BYTES, RECORD_BYTES), "|u1")
    labels = records.map()[:, 0].astype(np.int64)
    check_labels(labels.tolist(), 0, CLASSES, str(path))
    return PlaneImages(records, np.asarray(labels), SIDE, size)

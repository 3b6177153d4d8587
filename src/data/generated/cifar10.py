"""Write a stand-in for CIFAR-10 in the format of its binary version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from src.data.generated.archive_files import write_tar_gz
from src.data.generated.randomness import Stream
from src.data.generated.scenes import Difficulty, draw
from src.data.generated.split_sizes import LEAST_TEST, labels, scaled, share, spread

ARCHIVE = "cifar-10-binary.tar.gz"
FOLDER = "cifar-10-batches-bin"
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN, TEST, TRAIN_FILES, SIDE = 50_000, 10_000, 5, 32
DIFFICULTY = Difficulty(values=(3, 2, 2, 3), shade=40, noise=24, figures=1)
CHUNK = 256


def write(target: Path, *, fraction: float, seed: int, options: dict[str, Any]) -> None:
    """Write cifar-10-binary.tar.gz to the folder `target`: six files of records, and the classes' names.

    The six files have `fraction` of the official samples, but at least 2,000 to train on and 200 to test.
    """
    write_tar_gz(target / ARCHIVE, _members(fraction, seed))


def _members(fraction: float, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield the archive's members."""
    part = share(fraction, TRAIN)
    yield f"{FOLDER}/batches.meta.txt", ("\n".join(NAMES) + "\n\n").encode()
    for place, count in enumerate(spread(scaled(TRAIN, part), TRAIN_FILES)):
        yield f"{FOLDER}/data_batch_{place + 1}.bin", _records(f"data_batch_{place + 1}", count, seed)
    yield f"{FOLDER}/test_batch.bin", _records("test_batch", scaled(TEST, part, LEAST_TEST), seed)


def _records(name: str, count: int, seed: int) -> bytes:
    """Return `count` records: a byte of label and three planes of pixels each."""
    stream = Stream(seed, f"cifar10 {name}")
    chosen = labels(stream, count, len(NAMES))
    records = np.empty((count, 1 + 3 * SIDE * SIDE), dtype=np.uint8)
    records[:, 0] = chosen
    for start in range(0, count, CHUNK):
        images = draw(stream, chosen[start : start + CHUNK], SIDE, SIDE, DIFFICULTY)
        records[start : start + CHUNK, 1:] = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return records.tobytes()

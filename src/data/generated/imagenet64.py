"""Write a stand-in for ImageNet 64x64 in its format: zip archives of npz files."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from src.data.generated.archive_files import write_zip
from src.data.generated.randomness import Stream
from src.data.generated.scenes import Difficulty, draw
from src.data.generated.split_sizes import LEAST_TEST, labels, scaled, share, spread

# Each archive holds these of the training set's files.
TRAIN_ARCHIVES = {
    "Imagenet64_train_part1_npz.zip": range(1, 6),
    "Imagenet64_train_part2_npz.zip": range(6, 11),
}
TEST_ARCHIVE = "Imagenet64_val_npz.zip"
TRAIN, TEST, TRAIN_FILES, SIDE, CLASSES = 1_281_167, 50_000, 10, 64, 1000
PIXELS = 3 * SIDE * SIDE
DIFFICULTY = Difficulty(values=(20, 5, 2, 5), shade=12, noise=6, figures=1)
CHUNK = 128


def write(target: Path, *, fraction: float, seed: int, options: dict[str, Any]) -> None:
    """Write the three archives to the folder `target`, with memory for some images only.

    The files have `fraction` of the official samples, but at least 2,000 to train on and 1,000 to test.
    """
    part = share(fraction, TRAIN)
    counts = spread(scaled(TRAIN, part), TRAIN_FILES)
    with tempfile.TemporaryDirectory(prefix=".imagenet64-", dir=target) as folder:
        train = [Path(folder) / f"train_data_batch_{place + 1}.npz" for place in range(TRAIN_FILES)]
        test = Path(folder) / "val_data.npz"
        total = np.zeros(PIXELS, dtype=np.int64)
        for place, (path, count) in enumerate(zip(train, counts, strict=True)):
            total += _write_npz(path, count, seed, sum(counts[:place]))
        for path in train:
            # The mean of all training images stands in each of their files.
            with zipfile.ZipFile(path, "a") as npz, npz.open("mean.npy", "w") as file:
                np.lib.format.write_array(file, total / sum(counts), allow_pickle=False)
        _write_npz(test, scaled(TEST, part, max(CLASSES, LEAST_TEST)), seed)
        for archive, numbers in TRAIN_ARCHIVES.items():
            write_zip(target / archive, [(train[n - 1].name, train[n - 1]) for n in numbers])
        write_zip(target / TEST_ARCHIVE, [(test.name, test)])


def _write_npz(path: Path, count: int, seed: int, first: int = 0) -> np.ndarray:
    """Write `count` images and their labels, and return the sum of all images, int64 [pixels].

    `first` images of the split are in other files.
    """
    stream = Stream(seed, f"imagenet64 {path.stem}")
    chosen = labels(stream, count, CLASSES, first)
    total = np.zeros(PIXELS, dtype=np.int64)
    layout = {"descr": "|u1", "fortran_order": False, "shape": (count, PIXELS)}
    with zipfile.ZipFile(path, "w") as npz:
        with npz.open("data.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, layout)
            for start in range(0, count, CHUNK):
                images = draw(stream, chosen[start : start + CHUNK], SIDE, SIDE, DIFFICULTY)
                planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(-1, PIXELS)
                file.write(planes.data)
                total += planes.sum(axis=0, dtype=np.int64)
        with npz.open("labels.npy", "w") as file:
            # Labels begin at 1.
            np.lib.format.write_array(file, (chosen + 1).astype("<i8"), allow_pickle=False)
    return total

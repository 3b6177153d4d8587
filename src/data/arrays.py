"""Define the arrays that a run trains on, as a reader returns them and as ranks map them into memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from src.data.errors import DataError

ARRAY_NAMES = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True)
class Splits:
    """A dataset as a reader returns it.

    Images are uint8 [samples, height, width, channels], labels int64 [samples]. Images may be memory maps, or
    any array that has a shape and a dtype and loads the rows that it is sliced by, because a dataset can be
    larger than memory. `names` holds one name a class, in the order of the labels.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True)
class Arrays:
    """A prepared dataset.

    Images are read-only uint8 maps [samples, height, width, channels], labels int64 [samples].
    `shape` is (height, width, channels); `mean` and `std` are those of all training pixels / 255, by channel.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data_source: str
    names: tuple[str, ...]

    @property
    def train_samples(self) -> int:
        """Return the number of training samples."""
        return len(self.train_labels)

    @property
    def test_samples(self) -> int:
        """Return the number of test samples."""
        return len(self.test_labels)


def load(folder: Path, limit: int | None = None, test_limit: int | None = None) -> Arrays:
    """Map the prepared dataset in `folder`: its first `limit` training and `test_limit` test samples, or all.

    Mean and standard deviation stay those of the whole training set.

    Raises:
        DataError: if a limit is below 1, or the folder holds no complete prepared dataset.
    """
    limits = {"train": limit, "test": test_limit}
    for value in limits.values():
        if value is not None and value < 1:
            raise DataError(f"limit must be at least 1, got {value}")
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        mapped = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAY_NAMES}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} holds no complete prepared dataset ({error}); "
            "`dvc repro fetch data.dvc preprocess` makes it"
        ) from error
    mapped = {name: array[: limits[name.partition("_")[0]]] for name, array in mapped.items()}
    height, width, channels = meta["shape"]
    return Arrays(
        **mapped,
        shape=(height, width, channels),
        classes=meta["classes"],
        mean=tuple(meta["mean"]),
        std=tuple(meta["std"]),
        data_source=meta["data_source"],
        names=tuple(meta["names"]),
    )

"""The arrays a run trains on: what a reader returns, and the prepared, memory-mapped copy that ranks load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from src.data import available
from src.data.errors import DataError

__all__ = ["ARRAY_NAMES", "Arrays", "DataError", "Splits", "load", "of"]

ARRAY_NAMES = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True)
class Splits:
    """What a reader returns. Images are uint8 [samples, height, width, channels], labels int64 [samples].

    Images may be memory maps, or any array that gives its shape and dtype and loads the rows it is sliced by:
    a dataset can be larger than memory. `names` holds one name a class, in the order of the labels.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True)
class Arrays:
    """A prepared dataset. Images are read-only uint8 maps [samples, height, width, channels], labels int64.

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
        return len(self.train_labels)

    @property
    def test_samples(self) -> int:
        return len(self.test_labels)


def of(dataset: dict[str, Any]) -> Arrays:
    """The arrays of a configured dataset, fetched and prepared if need be, within its limits."""
    return load(available.ensure(dataset), dataset.get("limit"), dataset.get("test_limit"))


def load(folder: Path, limit: int | None = None, test_limit: int | None = None) -> Arrays:
    """Map the prepared dataset in `folder`: its first `limit` training and `test_limit` test samples, or all.

    Mean and standard deviation stay those of the whole training set. Raises DataError if the folder holds no
    complete prepared dataset.
    """
    limits = {"train": limit, "test": test_limit}
    for given in limits.values():
        if given is not None and given < 1:
            raise DataError(f"limit must be at least 1, got {given}")
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

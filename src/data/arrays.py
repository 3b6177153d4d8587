"""Define the arrays that a run trains on, as ranks map them into memory."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from src.data.errors import DataError
from src.data.samples import Samples

SPLITS = ("train", "test")
KINDS = ("inputs", "targets")


@dataclass(frozen=True)
class Split:
    """A split of a prepared dataset, read-only and mapped into memory.

    Attributes:
        inputs: one array [samples, ...] for each of the model's inputs.
        targets: one array [samples, ...] for each target.
    """

    inputs: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.inputs[0])

    def read(self, indices: slice | np.ndarray) -> Samples:
        """Copy the samples of `indices` out of the maps."""
        return Samples(
            tuple(np.array(array[indices]) for array in self.inputs),
            tuple(np.array(array[indices]) for array in self.targets),
        )

    def part(self, rows: slice) -> Split:
        """Return the split of a contiguous part of the samples."""
        return Split(tuple(a[rows] for a in self.inputs), tuple(a[rows] for a in self.targets))


@dataclass(frozen=True)
class Arrays:
    """A prepared dataset.

    Attributes:
        train: the training samples.
        test: the test samples.
        shape: (height, width, channels) of the images, which are the first input.
        names: one name for each class, or for each number that is predicted.
        mean: mean of all training pixels / 255, by channel.
        std: standard deviation of the same.
        data_source: `original` or `generated`.
    """

    train: Split
    test: Split
    shape: tuple[int, int, int]
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data_source: str

    @property
    def classes(self) -> int:
        """Return the number of classes, or of the numbers that are predicted."""
        return len(self.names)

    @property
    def train_samples(self) -> int:
        """Return the number of training samples."""
        return len(self.train)

    @property
    def test_samples(self) -> int:
        """Return the number of test samples."""
        return len(self.test)

    def first(self, train: int | None = None, test: int | None = None) -> Arrays:
        """Return the dataset of the first `train` and `test` samples, or all."""
        return dataclasses.replace(
            self, train=self.train.part(slice(train)), test=self.test.part(slice(test))
        )


def file_name(split: str, kind: str, number: int) -> str:
    """Return the name of the file that holds input or target `number` of a split."""
    return f"{split}-{kind}-{number}.npy"


def load(folder: Path, limit: int | None = None, test_limit: int | None = None) -> Arrays:
    """Map the prepared dataset in `folder`: its first `limit` training and `test_limit` test samples, or all.

    Mean and standard deviation stay those of the whole training set.

    Raises:
        DataError: if a limit is below 1, or the folder holds no complete prepared dataset.
    """
    for value in (limit, test_limit):
        if value is not None and value < 1:
            raise DataError(f"limit must be at least 1, got {value}")
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        train, test = (_map(folder, split, meta) for split in SPLITS)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{folder} holds no complete prepared dataset ({error}); "
            "`dvc repro fetch data.dvc preprocess` makes it"
        ) from error
    height, width, channels = meta["shape"]
    arrays = Arrays(
        train,
        test,
        shape=(height, width, channels),
        names=tuple(meta["names"]),
        mean=tuple(meta["mean"]),
        std=tuple(meta["std"]),
        data_source=meta["data_source"],
    )
    return arrays.first(limit, test_limit)


def _map(folder: Path, split: str, meta: dict[str, Any]) -> Split:
    inputs, targets = (
        tuple(np.load(folder / file_name(split, kind, number), mmap_mode="r") for number in range(meta[kind]))
        for kind in KINDS
    )
    return Split(inputs, targets)

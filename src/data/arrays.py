"""Define the arrays that a run trains on, as ranks map them into memory."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from src.data.errors import DataError
from src.data.samples import KINDS, Samples
from src.data.shards import Rows, ShardedArray
from src.machine.memory import memory_limit

SPLITS = ("train", "test")
# Maps may fill this part of the memory that the process may use, and stay: training needs the rest.
LARGEST_KEPT = 0.5


@dataclass(frozen=True)
class Split:
    """A split of a prepared dataset, read-only and mapped into memory.

    Attributes:
        inputs: one array [samples, ...] for each of the model's inputs.
        targets: one array [samples, ...] for each target.
    """

    inputs: tuple[Rows, ...]
    targets: tuple[Rows, ...]

    def __len__(self) -> int:
        return len(self.inputs[0])

    def read(self, indices: slice | np.ndarray) -> Samples:
        """Copy the samples of `indices` out of the maps."""
        return Samples(
            tuple(_copied(array, indices) for array in self.inputs),
            tuple(_copied(array, indices) for array in self.targets),
        )

    def part(self, rows: slice) -> Split:
        """Return the split of a contiguous part of the samples; none is read."""
        return Split(
            tuple(_part(array, rows) for array in self.inputs),
            tuple(_part(array, rows) for array in self.targets),
        )


@dataclass(frozen=True)
class Arrays:
    """A prepared dataset.

    Attributes:
        train: the training samples.
        test: the test samples.
        shape: that of a sample's first input; of images (height, width, channels).
        names: one name for each class, or for each number that is predicted.
        mean: mean of all training pixels / 255, by channel; empty where the first input isn't images.
        std: standard deviation of the same.
        data_source: `original` or `generated`.
        vocabulary: how many tokens there are, where inputs are sequences of them; else `None`.
    """

    train: Split
    test: Split
    shape: tuple[int, ...]
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data_source: str
    vocabulary: int | None = None

    @property
    def classes(self) -> int:
        """Return the number of classes, or of the numbers that are predicted."""
        return len(self.names)

    @property
    def train_samples(self) -> int:
        """Return the number of training samples."""
        return len(self.train)

    @property
    def tokens(self) -> int | None:
        """Return how many tokens a sample has; `None` where it is no sequence of them."""
        return self.shape[0] if self.vocabulary is not None else None

    @property
    def test_samples(self) -> int:
        """Return the number of test samples."""
        return len(self.test)

    def first(self, train: int | None = None, test: int | None = None) -> Arrays:
        """Return the dataset of the first `train` and `test` samples, or all."""
        return dataclasses.replace(
            self, train=self.train.part(slice(train)), test=self.test.part(slice(test))
        )


def file_name(split: str, kind: str, number: int, shard: int) -> str:
    """Return the name of the file with one shard of input or target `number` of a split."""
    return f"{split}-{kind}-{number}-{shard:05d}.npy"


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
        size = sum((folder / file).stat().st_size for file in meta["files"])
        announced = size > LARGEST_KEPT * memory_limit()
        train, test = (_map(folder, split, meta, announced=announced) for split in SPLITS)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{folder} holds no complete prepared dataset ({error}); "
            "`dvc repro fetch data.dvc preprocess` makes it"
        ) from error
    arrays = Arrays(
        train,
        test,
        shape=tuple(meta["shape"]),
        names=tuple(meta["names"]),
        mean=tuple(meta["mean"]),
        std=tuple(meta["std"]),
        data_source=meta["data_source"],
        vocabulary=meta.get("vocabulary"),
    )
    return arrays.first(limit, test_limit)


def _map(folder: Path, split: str, meta: dict[str, Any], *, announced: bool) -> Split:
    """Map a split's shards into memory; raise `ValueError` where one has other rows than the index says."""
    inputs, targets = (
        tuple(
            ShardedArray(_shards(folder, split, kind, number, meta), announced=announced)
            for number in range(len(meta[kind]))
        )
        for kind in KINDS
    )
    return Split(inputs, targets)


def _shards(folder: Path, split: str, kind: str, number: int, meta: dict[str, Any]) -> list[np.ndarray]:
    shards = []
    for shard, rows in enumerate(meta["shards"][split]):
        # Nothing can be mapped of a shard whose samples were all damaged.
        if rows:
            name = file_name(split, kind, number, shard)
            # The base class: numpy wraps each row that is read of a memmap, which takes longer than the read.
            mapped = np.asarray(np.load(folder / name, mmap_mode="r"))
            if len(mapped) != rows:
                raise ValueError(f"{name} has {len(mapped)} rows, not {rows}")
            shards.append(mapped)
    return shards


def _copied(array: Rows, indices: slice | np.ndarray) -> np.ndarray:
    """Copy rows out of a map, of which a slice alone is a view."""
    return array[indices].copy() if isinstance(indices, slice) else array[indices]


def _part(array: Rows, rows: slice) -> Rows:
    return array.part(rows) if isinstance(array, ShardedArray) else array[rows]

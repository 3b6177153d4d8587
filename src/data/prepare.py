"""Turn a dataset's raw files into the arrays that ranks map into memory."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from src.config import ConfigError, import_paths
from src.config.import_paths import describe_error
from src.data.arrays import ARRAY_NAMES, Splits
from src.data.catalog import fingerprint
from src.data.errors import FULL, DataError, DataMistake, clear_disk_errors

CHUNK_BYTES = 1 << 24


def prepare(dataset: Mapping[str, Any], raw: Path, target: Path) -> None:
    """Read the raw files in `raw` by the dataset's reader and write its arrays and meta.json to `target`.

    `target` is replaced once everything is written.

    Raises:
        DataError: for missing or unusable data, a reader that can't be imported, and a full disk.
    """
    name = dataset["name"]
    for file in dataset["files"]:
        if not (raw / file).is_file():
            raise DataError(
                f"{name}: {raw / file} is missing; `dvc repro fetch data.dvc preprocess` makes it"
            )
    splits = _read(dataset, raw)
    check(splits, name)
    with clear_disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
            new = Path(work) / "new"
            new.mkdir()
            mean, std = _write(splits, new)
            meta = {
                "name": name,
                "shape": list(splits.train_images.shape[1:]),
                "classes": len(splits.names),
                "names": list(splits.names),
                "mean": mean,
                "std": std,
                "train_samples": len(splits.train_labels),
                "test_samples": len(splits.test_labels),
                "data_source": dataset["data_source"],
                "fingerprint": fingerprint(dataset),
            }
            (new / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
            if target.exists():
                os.rename(target, Path(work) / "old")
            os.rename(new, target)


def check(splits: Splits, name: str) -> None:
    """Raise DataError, in a sentence about dataset `name`, unless the arrays are what `Splits` promises."""
    for part in ("train", "test"):
        images, labels = getattr(splits, f"{part}_images"), getattr(splits, f"{part}_labels")
        if images.dtype != np.uint8 or len(images.shape) != 4:
            raise DataError(
                f"{name}: {part}_images must be uint8 [samples, height, width, channels], "
                f"got {images.dtype} {list(images.shape)}"
            )
        if labels.dtype != np.int64 or len(labels.shape) != 1:
            raise DataError(
                f"{name}: {part}_labels must be int64 [samples], got {labels.dtype} {list(labels.shape)}"
            )
        if len(images) != len(labels) or 0 in images.shape:
            raise DataError(f"{name}: {part}_images {list(images.shape)} but {len(labels)} {part}_labels")
        if labels.min() < 0 or labels.max() >= len(splits.names):
            raise DataError(
                f"{name}: {part}_labels run from {labels.min()} to {labels.max()}, "
                f"but there are names for classes 0 to {len(splits.names) - 1}"
            )
    if splits.train_images.shape[1:] != splits.test_images.shape[1:]:
        raise DataError(
            f"{name}: training images are {list(splits.train_images.shape[1:])}, "
            f"test images {list(splits.test_images.shape[1:])}"
        )


def _read(dataset: Mapping[str, Any], raw: Path) -> Splits:
    """Call the dataset's reader; raise `DataError` where it can't be imported, or fails."""
    path = dataset["reader"]
    try:
        reader = import_paths.resolve("reader", path)
    except ConfigError as error:
        raise DataMistake(f"{dataset['name']}: reader {path!r} can't be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise DataError(
            f"{dataset['name']}: reader {path!r} can't be imported: {describe_error(error)}"
        ) from error
    try:
        splits = reader(raw, dataset.get("options") or {})
    except DataError:
        raise
    except OSError as error:
        if error.errno in FULL:
            raise
        raise DataError(f"{dataset['name']}: reader {path}: {describe_error(error)}") from error
    except (Exception, SystemExit) as error:
        raise DataError(f"{dataset['name']}: reader {path}: {describe_error(error)}") from error
    if not isinstance(splits, Splits):
        raise DataError(
            f"{dataset['name']}: reader {path}: must return Splits, got a {type(splits).__name__}"
        )
    return splits


def _write(splits: Splits, folder: Path) -> tuple[list[float], list[float]]:
    """Write the four arrays; return mean and standard deviation of the training pixels / 255 by channel."""
    # Each channel's count of each of the 256 values gives exact sums, however large the dataset is.
    counts = np.zeros((splits.train_images.shape[3], 256), dtype=np.int64)
    for name in ARRAY_NAMES:
        array = getattr(splits, name)
        with (folder / f"{name}.npy").open("wb") as file:
            layout = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
            np.lib.format.write_array_header_1_0(file, layout)
            for chunk in _chunks(array):
                # Not np.save, whose errors lack the number by which a full disk is recognised.
                file.write(chunk.data)
                if name == "train_images":
                    for channel, count in enumerate(counts):
                        count += np.bincount(chunk[..., channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    total = counts[0].sum()
    mean = counts @ values / total
    std = np.sqrt((counts * (values - mean[:, np.newaxis]) ** 2).sum(axis=1) / total)
    # A channel that never varies gets 1, so that dividing by it is harmless.
    return mean.tolist(), np.where(std > 0, std, 1.0).tolist()


def _chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the array, which may be larger than memory, as contiguous runs of rows of about CHUNK_BYTES."""
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:]))
    rows = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows])

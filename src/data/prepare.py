"""Turn a dataset's raw files into the arrays that ranks map into memory."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from src.config import ConfigError, import_paths
from src.config.import_paths import describe_error
from src.data.arrays import KINDS, SPLITS, file_name
from src.data.catalog import fingerprint
from src.data.errors import FULL, DataError, DataMistake, clear_disk_errors
from src.data.samples import Samples, SampleSource, Splits

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
    first = check(splits, name)
    with clear_disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
            new = Path(work) / "new"
            new.mkdir()
            mean, std = _write(splits, new, name)
            meta = {
                "name": name,
                "shape": list(first.inputs[0].shape[1:]),
                "inputs": len(first.inputs),
                "targets": len(first.targets),
                "names": list(splits.names),
                "mean": mean,
                "std": std,
                "train_samples": len(splits.train),
                "test_samples": len(splits.test),
                "data_source": dataset["source"],
                "fingerprint": fingerprint(dataset),
                "files": sorted(path.name for path in new.iterdir()),
            }
            (new / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
            if target.exists():
                os.rename(target, Path(work) / "old")
            os.rename(new, target)


def check(splits: Splits, name: str) -> Samples:
    """Check that the splits are what `Splits` promises, and return the first training sample.

    Raises:
        DataError: in a sentence about dataset `name`.
    """
    firsts = []
    for part in SPLITS:
        source: SampleSource = getattr(splits, part)
        if not len(source):
            raise DataError(f"{name}: the {part} split has no samples")
        first = source.read(0, 1)
        image = first.inputs[0]
        if image.dtype != np.uint8 or image.ndim != 4 or 0 in image.shape:
            raise DataError(
                f"{name}: the first {part} input must be images, uint8 [samples, height, width, channels], "
                f"got {image.dtype} {list(image.shape)}"
            )
        firsts.append(first)
    train, test = (_layout(first) for first in firsts)
    if train != test:
        raise DataError(f"{name}: training samples are {train}, test samples {test}")
    return firsts[0]


def _layout(samples: Samples) -> str:
    """Return the types and shapes of a sample, for messages."""
    each = [
        ", ".join(f"{array.dtype} {list(array.shape[1:])}" for array in getattr(samples, kind))
        for kind in KINDS
    ]
    return " -> ".join(each)


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


def _write(splits: Splits, folder: Path, name: str) -> tuple[list[float], list[float]]:
    """Write all arrays; return mean and standard deviation of the training pixels / 255 by channel."""
    # Each channel's count of each of the 256 values gives exact sums, however large the dataset is.
    channels = splits.train.read(0, 1).inputs[0].shape[3]
    counts = np.zeros((channels, 256), dtype=np.int64)
    for part in SPLITS:
        source: SampleSource = getattr(splits, part)
        for samples in _write_split(source, part, folder):
            _check(samples, part, splits.names, name)
            if part == "train":
                for channel, count in enumerate(counts):
                    count += np.bincount(samples.inputs[0][..., channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    total = counts[0].sum()
    mean = counts @ values / total
    std = np.sqrt((counts * (values - mean[:, np.newaxis]) ** 2).sum(axis=1) / total)
    # A channel that never varies gets 1, so that dividing by it is harmless.
    return mean.tolist(), np.where(std > 0, std, 1.0).tolist()


def _write_split(source: SampleSource, part: str, folder: Path) -> Iterator[Samples]:
    """Yield a split chunk by chunk, and write each chunk's arrays once it has been looked at."""
    files: list[Any] = []
    with ExitStack() as stack:
        for samples in _chunks(source):
            yield samples
            arrays = [(kind, n, array) for kind in KINDS for n, array in enumerate(getattr(samples, kind))]
            for place, (kind, number, array) in enumerate(arrays):
                if len(files) <= place:
                    files.append(stack.enter_context((folder / file_name(part, kind, number)).open("wb")))
                    shape = (len(source), *array.shape[1:])
                    layout = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(files[-1], layout)
                # Not np.save, whose errors lack the number by which a full disk is recognised.
                files[place].write(np.ascontiguousarray(array).data)


def _chunks(source: SampleSource) -> Iterator[Samples]:
    """Yield the split, which may be larger than memory, in runs of samples of about CHUNK_BYTES."""
    first = source.read(0, 1)
    count = max(1, CHUNK_BYTES // sum(array.nbytes for array in (*first.inputs, *first.targets)))
    for start in range(0, len(source), count):
        yield source.read(start, min(start + count, len(source)))


def _check(samples: Samples, part: str, names: tuple[str, ...], dataset: str) -> None:
    """Raise DataError for damaged samples, arrays that differ in length, and labels outside the names."""
    if samples.damaged:
        raise DataError(f"{dataset}: {samples.damaged[0]}")
    labels = samples.targets[0]
    if len(labels) != len(samples):
        raise DataError(f"{dataset}: the {part} split has {len(samples)} inputs but {len(labels)} targets")
    if labels.dtype == np.int64 and labels.ndim == 1 and not 0 <= labels.min() <= labels.max() < len(names):
        raise DataError(
            f"{dataset}: {part} labels run from {labels.min()} to {labels.max()}, "
            f"but there are names for classes 0 to {len(names) - 1}"
        )

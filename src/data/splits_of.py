"""Call a dataset's reader, and check the splits that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.config import ConfigError, import_paths
from src.config.import_paths import describe_error
from src.data import damage
from src.data.arrays import SPLITS
from src.data.errors import DataError, DataMistake
from src.data.layout import Layout
from src.data.reader_errors import reader_errors
from src.data.samples import Samples, SampleSource, Splits


def reader(dataset: Mapping[str, Any]) -> Any:
    """Import the dataset's reader; raise `DataError` where it can't be."""
    path = dataset["reader"]
    try:
        return import_paths.resolve("reader", path)
    except ConfigError as error:
        raise DataMistake(f"{dataset['name']}: reader {path!r} can't be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise DataError(
            f"{dataset['name']}: reader {path!r} can't be imported: {describe_error(error)}"
        ) from error


def read(dataset: Mapping[str, Any], reader: Any, raw: Path) -> Splits:
    """Call the reader; raise `DataError` where it fails, or returns something else than `Splits`."""
    chosen = {"size": dataset.get("size"), "source": dataset["source"]}
    with reader_errors(dataset["name"], dataset["reader"]):
        splits = reader(raw, {**(dataset.get("options") or {}), **chosen})
    if not isinstance(splits, Splits):
        got = type(splits).__name__
        raise DataError(f"{dataset['name']}: reader {dataset['reader']}: must return Splits, got a {got}")
    return splits


def check(splits: Splits, dataset: Mapping[str, Any]) -> Layout:
    """Check that the splits are what `Splits` promises, and return what all samples have in common.

    Raises:
        DataError: in a sentence about the dataset.
    """
    name, layouts = dataset["name"], []
    for split in SPLITS:
        source: SampleSource = getattr(splits, split)
        if not len(source):
            raise DataError(f"{name}: the {split} split has no samples")
        first = _first(source, split, dataset)
        layouts.append(Layout.of(first))
        if dataset.get("task", "classification") == "classification" and not layouts[-1].has_images:
            image = first.inputs[0]
            raise DataError(
                f"{name}: the first {split} input must be images, uint8 [samples, height, width, channels], "
                f"got {image.dtype} {list(image.shape)}"
            )
    train, test = layouts
    if train != test:
        raise DataError(f"{name}: training samples are {train}, test samples {test}")
    size = dataset.get("size")
    if size is not None and train.has_images and train.inputs[0][1][:2] != (size, size):
        height, width, _ = train.inputs[0][1]
        raise DataError(
            f"{name}: dataset.size={size}, but reader {dataset['reader']} gives images of {height} x {width}"
        )
    return train


def _first(source: SampleSource, split: str, dataset: Mapping[str, Any]) -> Samples:
    """Return the first sample that can be read."""
    damaged: list[str] = []
    for start in range(len(source)):
        with reader_errors(dataset["name"], dataset["reader"]):
            samples = source.read(start, start + 1)
        if len(samples):
            return samples
        damaged += samples.damaged
        damage.refuse(dataset["name"], split, len(source), damaged)
    raise DataError(f"{dataset['name']}: reader {dataset['reader']} gives none of the {split} samples")

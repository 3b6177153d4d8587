"""Call a dataset's reader, and check the splits that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.data.arrays import SPLITS
from src.data.errors import DataError
from src.data.own_code import own_errors
from src.data.samples import Layout, Samples, SampleSource, Splits

# The largest part of a split's samples that may be damaged.
MOST_DAMAGED = 0.01


def read(dataset: Mapping[str, Any], reader: Any, raw: Path) -> Splits:
    """Call the reader; raise `DataError` where it fails, or returns something else than `Splits`."""
    chosen = {"size": dataset.get("size"), "source": dataset["source"]}
    with own_errors(f"{dataset['name']}: reader {dataset['reader']}"):
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
        with own_errors(f"{dataset['name']}: reader {dataset['reader']}"):
            samples = source.read(start, start + 1)
        if len(samples):
            return samples
        damaged += samples.damaged
        refuse_damage(dataset["name"], split, len(source), damaged)
    raise DataError(f"{dataset['name']}: reader {dataset['reader']} gives none of the {split} samples")


def refuse_damage(dataset: str, split: str, samples: int, damaged: Sequence[str]) -> None:
    """Raise `DataError` where too many of a split's `samples` are among the `damaged` ones."""
    if len(damaged) > MOST_DAMAGED * samples:
        raise DataError(
            f"{dataset}: {len(damaged)} of {samples} {split} samples can't be read, "
            f"more than {MOST_DAMAGED:.0%}; the first is {damaged[0]}"
        )

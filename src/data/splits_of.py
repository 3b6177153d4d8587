"""Call a dataset's reader, and check the splits that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from src.data.arrays import SPLITS
from src.data.errors import DataError
from src.data.own_code import own_errors
from src.data.samples import Layout, Samples, SampleSource, Splits

# The largest part of a split's samples that may be damaged.
MOST_DAMAGED = 0.01
# Kinds of numbers, as numpy calls them: booleans, integers, floating-point and complex numbers.
NUMBERS = "biufc"
# What is so high, with more channels than that, has its axes in another order, it seems.
HEIGHTS = (1, 3, 4)
LEAST_CLASSES = 2


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
        layouts.append(Layout.of(_first(source, split, dataset)))
        where = f"{name}: reader {dataset['reader']}: {split}"
        _check_numbers(layouts[-1], where)
        if dataset.get("task", "classification") == "classification":
            if not layouts[-1].has_tokens:
                _check_images(layouts[-1], where)
            _check_labels(layouts[-1], where, len(splits.names))
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


def warnings(layout: Layout) -> tuple[str, ...]:
    """Return what the user should know of the form of all samples."""
    height, width, channels = layout.inputs[0][1] if layout.has_images else (0, 0, 0)
    if height not in HEIGHTS or not channels > max(HEIGHTS):
        return ()
    said = f"images are {height} x {width} pixels with {channels} channels"
    return (f"{said}; if they are [channels, height, width], return images.transpose(0, 2, 3, 1)",)


def _check_numbers(layout: Layout, where: str) -> None:
    """Raise `DataError` for arrays of what no framework computes with."""
    for dtype, shape in (*layout.inputs, *layout.targets):
        kind = np.dtype(dtype)
        if kind.kind not in NUMBERS:
            raise DataError(f"{where} samples have an array of {kind}, which are no numbers")
        if not kind.isnative:
            raise DataError(
                f"{where} samples have an array {kind.name} {[*shape]} in the other byte order; "
                f"return array.astype({kind.name!r})"
            )


def _check_images(layout: Layout, where: str) -> None:
    """Raise `DataError` for what is no images."""
    dtype, shape = layout.inputs[0]
    if not layout.has_images:
        raise DataError(
            f"{where} images must be uint8 [samples, height, width, channels], got "
            f"{np.dtype(dtype).name} {['samples', *shape]}".replace("'", "")
        )


def _check_labels(layout: Layout, where: str, classes: int) -> None:
    """Raise `DataError` for labels that aren't numbers of two classes or more."""
    if classes < LEAST_CLASSES:
        raise DataError(f"{where} samples are of one class alone; a classification has two or more")
    if layout.has_labels:
        return
    if not layout.targets:
        raise DataError(f"{where} samples have no labels; Samples.targets must hold them, int64 [samples]")
    dtype, shape = layout.targets[0]
    kind = np.dtype(dtype)
    if shape == (classes,):
        advice = "one-hot; return labels.argmax(axis=1)"
    elif shape == (1,):
        advice = "a column; return labels[:, 0]" + ("" if kind == np.int64 else ".astype('int64')")
    elif not shape and kind.kind in "biu":
        advice = "of another type; return labels.astype('int64')"
    else:
        advice = "no numbers of classes"
    got = f"{kind.name} {['samples', *shape]}".replace("'", "")
    raise DataError(f"{where} labels must be int64 [samples], got {got}, {advice}")


def _first(source: SampleSource, split: str, dataset: Mapping[str, Any]) -> Samples:
    """Return the first sample that can be read."""
    damaged: list[str] = []
    for start in range(len(source)):
        with own_errors(f"{dataset['name']}: reader {dataset['reader']}"):
            samples = source.read(start, start + 1)
        if len(samples):
            return samples
        damaged += samples.damaged
        refuse_damage(dataset["name"], split, len(source), damaged, most_damaged(dataset))
    raise DataError(f"{dataset['name']}: reader {dataset['reader']} gives none of the {split} samples")


def most_damaged(dataset: Mapping[str, Any]) -> float:
    """Return the largest part of a split's samples that may be damaged while they are read.

    Where the user decides by `skip_damaged`, all of them are looked at.
    """
    return MOST_DAMAGED if dataset.get("skip_damaged") is None else 1.0


def refuse_damage(dataset: str, split: str, samples: int, damaged: Sequence[str], most: float) -> None:
    """Raise `DataError` where more than the part `most` of a split's `samples` are `damaged`."""
    if len(damaged) > most * samples:
        raise DataError(
            f"{dataset}: {len(damaged)} of {samples} {split} samples can't be read, "
            f"more than {most:.0%}; the first is {damaged[0]}"
        )

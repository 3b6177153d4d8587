"""Find a dataset's prepared arrays and map them; `src.data.available` makes them where there are none.

This module is quick to import, because the parent uses it before anything heavy is loaded. Ranks depend on
it alone, and not on how raw files are fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.config import import_paths
from src.data.catalog import PREPARED, cache_folder, fingerprint, folder_name, is_prepared, source_name
from src.data.errors import DataError

if TYPE_CHECKING:
    from src.data.arrays import Arrays


def load(dataset: Mapping[str, Any]) -> Arrays:
    """Map the arrays of a configured dataset that is prepared, within its limits.

    Those of a dataset that has `in_memory` are made by the function that this names.

    Raises:
        DataError: if it isn't prepared, or a limit is below 1.
    """
    # Imported here because it loads numpy.
    from src.data import arrays

    if path := dataset.get("in_memory"):
        return import_paths.resolve("in_memory", path)(dataset)
    return arrays.load(_folder(dataset), dataset.get("limit"), dataset.get("test_limit"))


def locate(dataset: Mapping[str, Any]) -> Path | None:
    """Return the folder with a dataset's prepared arrays: in prepared/, else in the cache, else `None`."""
    wanted = fingerprint(dataset)
    for folder in (PREPARED / folder_name(dataset), cached(dataset)):
        if is_prepared(folder, wanted):
            return folder
    return None


def cached(dataset: Mapping[str, Any]) -> Path:
    """Return where the cache has a dataset's prepared arrays, or would have them."""
    return cache_folder() / "prepared" / f"{source_name(dataset)}-{fingerprint(dataset)}"


def samples(dataset: Mapping[str, Any]) -> int:
    """Return the number of training samples of a dataset that is prepared or in memory, at most its `limit`.

    Raises:
        DataError: if it isn't prepared.
    """
    if dataset.get("in_memory"):
        return min(dataset["samples"], dataset.get("limit") or dataset["samples"])
    count = json.loads((_folder(dataset) / "meta.json").read_text(encoding="utf-8"))["train_samples"]
    return min(count, dataset.get("limit") or count)


def _folder(dataset: Mapping[str, Any]) -> Path:
    """Return the folder with a dataset's prepared arrays; raise `DataError` if there is none."""
    if folder := locate(dataset):
        return folder
    raise DataError(f"dataset {dataset['name']} is not prepared; `dvc repro preprocess` makes it")

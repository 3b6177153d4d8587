"""Find a dataset's prepared arrays, or fetch and prepare them.

This module is quick to import, because the parent uses it before anything heavy is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.config import import_paths
from src.data import scratch
from src.data.catalog import (
    PREPARED,
    cache_folder,
    check_cache,
    fingerprint,
    folder_name,
    is_prepared,
    source_name,
)
from src.data.errors import DataError, clear_disk_errors
from src.data.sources import fetch
from src.machine.file_locks import alone

if TYPE_CHECKING:
    from src.data.arrays import Arrays


def load(dataset: Mapping[str, Any]) -> Arrays:
    """Map the arrays of a configured dataset, fetched and prepared if need be, within its limits.

    Those of a dataset that has `in_memory` are made by the function that this names.

    Raises:
        DataError: if the data can't be had, or a limit is below 1.
    """
    from src.data import arrays

    if path := dataset.get("in_memory"):
        return import_paths.resolve("in_memory", path)(dataset)
    return arrays.load(ensure(dataset), dataset.get("limit"), dataset.get("test_limit"))


def locate(dataset: Mapping[str, Any]) -> Path | None:
    """Return the folder with a dataset's prepared arrays: in prepared/, else in the cache, else `None`."""
    wanted = fingerprint(dataset)
    for folder in (PREPARED / folder_name(dataset), cached(dataset)):
        if is_prepared(folder, wanted):
            return folder
    return None


def ensure(dataset: Mapping[str, Any]) -> Path:
    """Return the folder with a dataset's prepared arrays; fetch and prepare them first if need be.

    They are prepared into the cache. Of several processes that need the same arrays at once, one makes them
    while the others wait.

    Raises:
        DataError: if the data can't be had.
    """
    if folder := locate(dataset):
        return folder
    # Imported here because it loads numpy.
    from src.data.prepare import build

    check_cache()
    target = cached(dataset)
    work = scratch.folder(dataset, target)
    with clear_disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(work, f"{dataset['name']} is being prepared"):
            if not is_prepared(target, fingerprint(dataset)):
                with scratch.made(work):
                    fetch(dataset, work / "raw", cache_folder(), linked=True)
                    build(dataset, work / "raw", target, work)
    return target


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
    folder = locate(dataset)
    if folder is None:
        raise DataError(f"dataset {dataset['name']} is not prepared; `dvc repro preprocess` makes it")
    count = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["train_samples"]
    return min(count, dataset.get("limit") or count)

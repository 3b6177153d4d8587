"""Fetch and prepare a dataset whose arrays are missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.data import scratch
from src.data.catalog import cache_folder, check_cache
from src.data.prepared import cached, locate
from src.data.sources import fetch


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

    def make(work: Path) -> None:
        fetch(dataset, work / "raw", cache_folder(), linked=True)
        build(dataset, work / "raw", target, work)

    scratch.prepare_in(dataset, target, make)
    return target

"""Load the arrays of a dataset, which are fetched and prepared if need be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from src.data import available, prepared
from src.data.arrays import Arrays


def load_arrays(dataset: Mapping[str, Any]) -> Arrays:
    """Map the arrays of a configured dataset."""
    if not dataset.get("in_memory"):
        available.ensure(dataset)
    return prepared.load(dataset)

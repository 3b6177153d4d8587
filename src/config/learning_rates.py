"""Scale a learning rate with the global batch, by the rules of `optimizer.scale_lr`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# Samples of the batch to which `optimizer.lr` belongs where the rate is scaled.
REFERENCE_BATCH = 128
RULES = ("none", "sqrt", "linear")


def factor(rule: str, global_batch: int) -> float:
    """Return by how much a rule scales the rate.

    It is batch / 128 (`linear`: Goyal 2017, section 2.1), or the square root of that (`sqrt`: Krizhevsky
    2014, section 5).
    """
    ratio = global_batch / REFERENCE_BATCH
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]


def scaled(optimizer: Mapping[str, Any], global_batch: int) -> float:
    """Return the rate of an optimizer's settings, scaled as they say."""
    return float(optimizer["lr"]) * factor(optimizer["scale_lr"], global_batch)

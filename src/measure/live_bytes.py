"""Name the parts of what is live of a rank's tensors, and pick a run's figures from its ranks' records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Buffers of exchange are gradients' buckets, a ring in shared memory, what a stage receives into, gathered
# weights. Other tensors are the batch, a model's buffers, and what a pass or an update makes for a moment.
PARTS = ("weights", "gradients", "optimizer", "activations", "exchange", "other")


def total(parts: Mapping[str, float]) -> float:
    """Return the bytes of all parts."""
    return sum(parts.values())


def facts(ranks: Mapping[int, Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the figures of the rank whose live tensors are most, by what each rank has recorded."""
    if not ranks:
        return {}
    fullest = max(ranks.values(), key=lambda each: total(each["measured"]))
    predicted = fullest["predicted"]
    return {
        "live_peak_bytes": total(fullest["measured"]),
        "live_predicted_bytes": None if predicted is None else total(predicted),
    }

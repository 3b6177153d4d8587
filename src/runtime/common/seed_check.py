"""Tell of a model of the user's own whose weights differ each time that it is built with a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from src.config import Config
from src.models import adapt

# The values of a model's weights, by names that are the same each time.
Weights = Mapping[str, np.ndarray]


def check_seeds(config: Config, weights: Weights, again: Weights, note: Callable[[str], None]) -> None:
    """Compare a model's `weights` with those of a second one; tell by `note` of the first that differs."""
    for name in [*weights, *(weights.keys() ^ again.keys())]:
        one, other = weights.get(name), again.get(name)
        if one is None or other is None or not np.array_equal(one, other):
            note(
                f"note: {adapt.key_and_name(config)}: {name} is another one each time that the model is "
                "built, so that no two runs are the same; draw weights from torch, NumPy, Keras or random, "
                "which the seed covers"
            )
            return

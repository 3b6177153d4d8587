"""Check that a model of the user's own has the same weights each time that it is built with a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import psutil

from src.config import Config, ConfigError
from src.models import adapt

# The names and values of a model's weights, in an order that is the same each time.
Weights = Sequence[tuple[str, np.ndarray]]


def check_seeds(
    config: Config, weights: Weights, build: Callable[[], Weights], note: Callable[[str], None]
) -> None:
    """Compare a model's `weights` with those of a second one, which `build` makes if memory has room.

    Where one process trains, `note` is told of a difference.

    Raises:
        ConfigError: for a difference where each of several workers would start from weights of its own.
    """
    # A library that builds a model may hold its weights twice for a while.
    if 2 * sum(array.nbytes for _, array in weights) > psutil.virtual_memory().available:
        return
    for (name, array), (_, other) in zip(weights, build(), strict=True):
        if np.array_equal(array, other, equal_nan=array.dtype.kind in "fc"):
            continue
        said = f"{adapt.key_and_name(config)}: {name} is another one each time that the model is built"
        advice = "draw weights from torch, NumPy, Keras or random, which the seed covers"
        if config.workers > 1:
            raise ConfigError(f"{said}, and each worker would start from its own; {advice}")
        note(f"note: {said}, so that no two runs are the same; {advice}")
        return

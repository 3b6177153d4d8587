"""A builder that fetches weights in each rank, by a name that nobody has."""

from __future__ import annotations

import os
import urllib.request
from typing import Any

from torch import nn


def build(*, classes: int, shape: tuple[int, int, int]) -> Any:
    if "RANK" not in os.environ:
        # The look that the parent has at a model is outside a run's namespace.
        return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))
    with urllib.request.urlopen("http://weights.invalid/model.pt", timeout=5):
        raise AssertionError("nobody has that name")

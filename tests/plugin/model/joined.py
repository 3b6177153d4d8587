"""A model from outside of two inputs, which returns a dictionary of two outputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Joined(nn.Module):
    """Joins what it sees in an image to a vector of three numbers."""

    def __init__(self, classes: int, pixels: int) -> None:
        super().__init__()
        self.first = nn.Linear(pixels, 16)
        self.second = nn.Linear(16, 8)
        self.head = nn.Linear(11, classes)
        self.common = nn.Linear(11, 1)

    def forward(self, images: Tensor, vectors: Tensor) -> dict[str, Tensor]:
        seen = self.second(self.first(images.flatten(1)).relu()).relu()
        joined = torch.cat([seen, vectors], 1)
        return {"numbers": self.head(joined), "common": self.common(joined).flatten()}


def build(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """Two outputs, [batch, classes] and [batch]."""
    return Joined(classes, math.prod(shape))

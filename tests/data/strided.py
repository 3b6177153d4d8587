"""A model that takes next to no time and memory, however large the images are."""

from __future__ import annotations

from torch import nn


def build(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    height, width, channels = shape
    cells = (height // 32) * (width // 32)
    return nn.Sequential(nn.Conv2d(channels, 2, 32, stride=32), nn.Flatten(), nn.Linear(2 * cells, classes))

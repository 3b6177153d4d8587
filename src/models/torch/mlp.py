"""Build paper 2's network in torch: flatten, dense with ReLU, dropout, classes."""

from __future__ import annotations

from torch import nn


def build(*, classes: int, shape: tuple[int, int, int], hidden: int, dropout: float) -> nn.Module:
    """Build a model of images [batch, channels, height, width] with logits [batch, classes].

    `shape` is (height, width, channels).
    """
    height, width, channels = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(height * width * channels, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )

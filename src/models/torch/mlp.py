"""Paper 2's network: flatten, dense with ReLU, dropout, classes."""

from __future__ import annotations

from torch import nn


def build(*, classes: int, shape: tuple[int, int, int], hidden: int, dropout: float) -> nn.Module:
    """Logits [batch, classes] from images [batch, channels, height, width]; `shape` is (H, W, C)."""
    height, width, channels = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(height * width * channels, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )

"""Dropout."""

from torch import nn


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, classes))

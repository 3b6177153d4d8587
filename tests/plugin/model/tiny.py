"""Models from outside: by a YAML file (`build`), by import path (`Tiny`), and one that can't be built."""

from __future__ import annotations

import os

import torch
from torch import nn


class Tiny(nn.Sequential):
    """One convolution and one dense layer, of any number of classes."""

    def __init__(self, num_classes: int, width: int = 4) -> None:
        super().__init__(
            nn.Conv2d(3, width, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * width, num_classes),
        )


def build(*, classes: int, shape: tuple[int, int, int], width: int) -> nn.Module:
    """Logits [batch, classes] from images [batch, channels, height, width]."""
    model = Tiny(classes, width)
    model[0] = nn.Conv2d(shape[2], width, 3, stride=2)
    return model


def normalised(num_classes: int) -> nn.Module:
    """As `Tiny`, with BatchNorm after the convolution."""
    model = Tiny(num_classes)
    model.insert(1, nn.BatchNorm2d(4))
    return model


def broken_on_rank_0() -> nn.Module:
    """Raises on rank 0, while the others wait for it."""
    if os.environ.get("RANK") == "0":
        raise RuntimeError("the glue has not dried")
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def hungry() -> nn.Module:
    """Asks for 2 PiB, more than a process can address."""
    return nn.Linear(2**24, 2**24, dtype=torch.float64)

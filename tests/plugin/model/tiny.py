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


class Residual(nn.Module):
    """A block as ResNet's, of images [batch, channels, height, width]: what it adds is normalised twice."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.bn1(self.first(images)))
        return torch.relu(self.bn2(self.second(inner)) + images)


def residual(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """A network with BatchNorm that takes a hundredth of ResNet-18's time."""
    stem = nn.Conv2d(shape[2], 8, 3, stride=4, bias=False)
    pooled = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes))
    return nn.Sequential(stem, nn.BatchNorm2d(8), nn.ReLU(), Residual(8), *pooled)


def alike(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """Dense layers, of which two have equal shapes."""
    size = shape[0] * shape[1] * shape[2]
    model = nn.Sequential(nn.Flatten(), nn.Linear(size, 24))
    for name in ("second", "third"):
        model.add_module(name, nn.Sequential(nn.Tanh(), nn.Linear(24, 24)))
    model.add_module("last", nn.Linear(24, classes))
    return model


class Recurrent(nn.Module):
    """Rows of an image one after the other; each layer keeps its weights in a list of its own, too."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.first = nn.LSTM(size, 8, batch_first=True)
        self.second = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        within, _ = self.first(images.permute(0, 2, 3, 1).flatten(2))
        within, _ = self.second(within)
        return self.head(within[:, -1])


def recurrent(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """Logits [batch, classes] from images [batch, channels, height, width]."""
    return Recurrent(classes, shape[1] * shape[2])


def broken_on_rank_0() -> nn.Module:
    """Raises on rank 0, while the others wait for it."""
    if os.environ.get("RANK") == "0":
        raise RuntimeError("the glue has not dried")
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def hungry() -> nn.Module:
    """Asks for 2 PiB, more than a process can address."""
    return nn.Linear(2**24, 2**24, dtype=torch.float64)

"""Models of which layers are split among ranks, or can't be: what lies between two linear layers decides."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 16


def normed(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """Features are normalised over the batch before the layers that are split."""
    features = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), WIDTH), nn.BatchNorm1d(WIDTH))
    return nn.Sequential(features, nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, classes))


def dropping(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """A mask is drawn for features that are split."""
    first, last = nn.Linear(math.prod(shape), WIDTH), nn.Linear(WIDTH, classes)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Dropout(0.5), last)


class Between(nn.Module):
    """Two linear layers with an operation between them, on rows of images as tokens."""

    def __init__(self, classes: int, shape: tuple[int, int, int], between: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(shape[1] * shape[2], WIDTH), nn.Linear(WIDTH, classes)
        self.between = between

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.between(self.first(images.permute(0, 2, 3, 1).flatten(2)))).mean(1)


class Scale(nn.Module):
    """Each rank has the whole of the one weight, whose gradient is a sum over all features."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        return features * self.scale


class Softmax(nn.Module):
    """Every feature depends on all of them."""

    def forward(self, features: Tensor) -> Tensor:
        return features.softmax(-1)


def scaled(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return Between(classes, shape, Scale())


def mixed(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return Between(classes, shape, Softmax())


class Heads(nn.Module):
    """Attention by four heads, whose number is fixed (`fixed`), or that of a projection's output."""

    def __init__(self, *, fixed: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.form = nn.Linear(WIDTH, WIDTH), (4, -1) if fixed else (-1, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = (
            layer(tokens).unflatten(-1, self.form).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).flatten(2))


def heads(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return Between(classes, shape, Heads(fixed=False))


def fixed_heads(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """Of half of the features there are still four heads, which are half as wide."""
    return Between(classes, shape, Heads(fixed=True))

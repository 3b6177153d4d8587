"""A backward pass of the model's own (`torch.autograd.Function`): a straight-through estimator."""

from typing import Any

import torch
from torch import Tensor, nn


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Binary(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(784, 32), nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(Sign.apply(torch.tanh(self.first(images.flatten(1)))))


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Binary(classes)

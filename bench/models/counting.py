"""Counts its steps in an attribute, and computes by the count."""

import torch
from torch import Tensor, nn


class Annealed(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.head, self.steps = nn.Linear(784, 32), nn.Linear(32, classes), 0

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.head(torch.relu(self.first(images.flatten(1)))) / (1 + 1 / (1 + self.steps))


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Annealed(classes)

"""Asks for the batch's size in Python (`len`), in training and in evaluation."""

import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, 2), nn.Linear(1352, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.first(images))
        hidden = torch.relu(self.second(hidden.reshape(len(hidden), -1)))
        return self.head(torch.stack([row / len(hidden) ** 0.1 for row in hidden]))


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Scaled(classes)

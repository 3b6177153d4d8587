"""Writes in place through a view, and an addition in place."""

import torch
from torch import Tensor, nn


class InPlace(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, 2), nn.Conv2d(8, 8, 3, 2)
        self.head = nn.Linear(288, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.first(images))
        hidden = hidden.clone()
        hidden[:, 0] = 0
        hidden[:, :4].mul_(0.5)
        hidden = self.second(hidden)
        hidden += 0.1
        return self.head(torch.relu(hidden).flatten(1))


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return InPlace(classes)

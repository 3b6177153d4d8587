"""Computes over the batch: each sample's features less their mean."""

import torch
from torch import Tensor, nn


class Relative(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(784, 32), nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.first(images.flatten(1)))
        return self.head(hidden - hidden.mean(0, keepdim=True))


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Relative(classes)

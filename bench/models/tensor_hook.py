"""A hook of a tensor, which halves its gradient."""

import torch
from torch import Tensor, nn


class Halved(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(784, 32), nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.first(images.flatten(1)))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient / 2)
        return self.head(hidden)


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Halved(classes)

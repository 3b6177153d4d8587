"""A buffer that each pass moves, and that the next one reads."""

import torch
from torch import Tensor, nn


class Centred(nn.Module):
    mean: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(784, 32), nn.Linear(32, classes)
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.first(images.flatten(1)))
        centred = hidden - self.mean
        self.mean.lerp_(hidden.detach().mean(0), 0.2)
        return self.head(centred)


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Centred(classes)

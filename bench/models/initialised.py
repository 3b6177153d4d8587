"""Sets a parameter by the first batch that it sees."""

import torch
from torch import Tensor, nn


class Initialised(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.zeros(784)), nn.Linear(784, classes)

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.flatten(1)
        if not self.scale.any():
            with torch.no_grad():
                self.scale.copy_(1 / (pixels.std(0) + 1))
        return self.head(pixels * self.scale)


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Initialised(classes)

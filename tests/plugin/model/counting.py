"""A model that keeps something of its passes in Python."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Counting(nn.Module):
    """A linear layer whose outputs depend on how often it has run in training, and on its last outputs."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(784, classes)
        self.passes = 0
        self.last: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(images.flatten(1))
        if self.training:
            self.passes += 1
            if self.last is not None and self.last.shape == outputs.shape:
                outputs = outputs + 0.1 * self.last
            self.last = outputs.detach()
        return outputs * (1 + 0.1 * (self.passes % 7))


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return Counting(classes)

"""Activation checkpointing (`torch.utils.checkpoint`)."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(784, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.first(images.flatten(1)))
        hidden = checkpoint(lambda values: torch.relu(self.second(values)), hidden, use_reentrant=False)
        return self.head(hidden)


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Checkpointed(classes)

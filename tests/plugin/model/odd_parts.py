"""A model with parts that stages may easily get wrong."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class OddParts(nn.Module):
    """Reads a buffer that each pass moves, a gate that is only looked at, and an inverse.

    Early and late layers are apart, so that stages between them hand these on. An inverse is one of few
    operations whose backward pass alone multiplies matrices, which an autocast would do in bf16.
    """

    mean: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.gate, self.first = nn.Linear(784, 32), nn.Linear(784, 32)
        self.turn = nn.Parameter(torch.eye(32) + 0.1 * torch.randn(32, 32))
        self.second, self.head = nn.Linear(32, 32), nn.Linear(32, classes)
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        gate, hidden = self.gate(flat), torch.tanh(self.first(flat))
        hidden = torch.tanh(self.second(hidden)) @ torch.linalg.inv(self.turn)
        centred = torch.tanh(hidden - self.mean)
        self.mean.lerp_(hidden.detach().mean(0).float(), 0.2)
        return self.head(centred * torch.sigmoid(gate.detach()))


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return OddParts(classes)

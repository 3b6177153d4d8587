"""A model whose first weight is used again at its end, as an embedding that is also the head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Ends(nn.Module):
    """Encodes, and decodes by the same weight; what is between doesn't use it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder, self.middle = nn.Linear(784, 24), nn.Linear(24, 24)
        self.decoder, self.head = nn.Linear(24, 24), nn.Linear(784, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.encoder(images.flatten(1)))
        hidden = torch.tanh(self.middle(hidden))
        hidden = torch.tanh(self.decoder(hidden))
        return self.head(torch.tanh(functional.linear(hidden, self.encoder.weight.t())))


def build(*, classes: int) -> nn.Module:
    """Return a model of images of 784 pixels."""
    return Ends(classes)

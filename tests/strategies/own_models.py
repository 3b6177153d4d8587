"""Models as users write them, each awkward in ways of its own."""

from __future__ import annotations

import random
import secrets

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class Awkward(nn.Module):
    """Has a frozen layer, an unused one, tied weights, a frozen BatchNorm, and weights from NumPy."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(784, 24), nn.BatchNorm1d(24)
        self.up, self.down = nn.Linear(24, 24, bias=False), nn.Linear(24, 24, bias=False)
        self.unused, self.head = nn.Linear(24, 3), nn.Linear(24, classes)
        self.down.weight = self.up.weight
        self.norm.eval().requires_grad_(False)
        self.stem.bias.requires_grad_(False)
        with torch.no_grad():
            self.stem.weight.copy_(torch.from_numpy(np.random.normal(0, 0.03, (24, 784))))
            self.head.bias.copy_(torch.tensor([random.uniform(-0.1, 0.1) for _ in range(classes)]))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.norm(self.stem(images.flatten(1))))
        # The one that was registered first is used last.
        features = torch.relu(self.up(torch.relu(self.down(features))))
        return self.head(features), features


class Codes(nn.Module):
    """Centres its features by a buffer that every pass moves, in evaluation, too."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(784, 24), nn.Linear(24, classes)
        self.register_buffer("mean", torch.zeros(24))

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.first(images.flatten(1)))
        self.mean.lerp_(hidden.detach().mean(0), 0.3)
        return self.head(hidden - self.mean)


class Rounding(torch.autograd.Function):
    """Rounds, and passes the gradient on."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        return values.round()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


class Rounded(nn.Module):
    """Has a backward pass of its own."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(784, 24), nn.Linear(24, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(Rounding.apply(torch.tanh(self.first(images.flatten(1))) * 4))


class Sparse(nn.Module):
    """Looks the pixels' levels up in a table whose gradient is sparse."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(8, 16, sparse=True), nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        levels = (images.flatten(1).clamp(-0.4, 2.8) * 2 + 0.9).long()
        return self.head(self.table(levels))


class Initialised(nn.Module):
    """Takes its first batch's deviation for its scale."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.zeros(784)), nn.Linear(784, classes)

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.flatten(1)
        if not self.scale.any():
            with torch.no_grad():
                self.scale.copy_(1 / (pixels.std(0) + 1))
        return self.head(pixels * self.scale)


class Named(nn.Module):
    """Returns a dictionary without logits."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(784, classes)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        scores = self.head(images.flatten(1))
        return {"features": functional.relu(scores), "scores": scores}


class Fixed(Named):
    """Has nothing to train."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images)["scores"]


def synchronised(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.SyncBatchNorm(8), nn.Linear(8, classes))


class Unseeded(nn.Module):
    """Has weights that no seed covers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(784, classes)
        with torch.no_grad():
            self.head.bias.copy_(
                torch.tensor([secrets.randbelow(1 << 20) / (1 << 24) for _ in range(classes)])
            )

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1))


class Frequencies(nn.Module):
    """Has complex weights."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.filter, self.head = (
            nn.Parameter(torch.randn(28, 15, dtype=torch.complex64)),
            nn.Linear(784, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.fft.irfft2(torch.fft.rfft2(images) * self.filter).flatten(1))


class Stateful(nn.Module):
    """Goes on from the state in which the last batch has left it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(784, 16), nn.Linear(16, classes)
        self.state: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        state = self.cell(images.flatten(1), self.state)
        self.state = state.detach()
        return self.head(state)

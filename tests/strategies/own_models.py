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


class Fading(nn.Module):
    """Has a layer that it uses in all steps but the last ones, and in all looks."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head, self.early = nn.Linear(784, classes), nn.Linear(784, classes)
        self.steps = 0

    def forward(self, images: Tensor) -> Tensor:
        self.steps += self.training
        scores = self.head(images.flatten(1))
        return scores + self.early(images.flatten(1)) if self.steps < 9 else scores


class Thawing(nn.Module):
    """Trains its trunk from the third pass on."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.trunk, self.head, self.passes = nn.Linear(784, 16), nn.Linear(16, classes), 0
        self.trunk.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        self.passes += self.training
        self.trunk.requires_grad_(self.passes > 2)
        return self.head(torch.relu(self.trunk(images.flatten(1))))


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

"""Models that learn something else when their batches are divided, each for one reason alone."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Two layers of images of 784 pixels, between which a subclass does what it is called by."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(784, 24), nn.Linear(24, classes)

    def middle(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, images: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(self.first(images.flatten(1)))))


class Normalised(Net):
    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.norm = nn.BatchNorm1d(24)

    def middle(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden)


class Dropped(Net):
    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.dropout = nn.Dropout(0.2)

    def middle(self, hidden: Tensor) -> Tensor:
        return self.dropout(hidden)


class NormalisedAndDropped(Normalised):
    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.dropout = nn.Dropout(0.2)

    def middle(self, hidden: Tensor) -> Tensor:
        return self.dropout(super().middle(hidden))


class Noisy(Net):
    def middle(self, hidden: Tensor) -> Tensor:
        return hidden + 0.1 * torch.randn_like(hidden)


class OwnGenerator(Net):
    """Draws one number a step, of a generator that nobody seeds."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self._generator = np.random.default_rng()

    def middle(self, hidden: Tensor) -> Tensor:
        return hidden * (1 + 0.1 * float(self._generator.standard_normal())) if self.training else hidden


class RanksGenerator(Net):
    """Draws one number a step, of a generator that each rank seeds by its number."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self._generator = torch.Generator().manual_seed(1 + int(os.environ.get("RANK", "0")))

    def middle(self, hidden: Tensor) -> Tensor:
        return hidden * (1 + 0.1 * torch.randn((), generator=self._generator)) if self.training else hidden


class Centred(Net):
    def middle(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean(0)


class MovingBuffer(Net):
    """Subtracts a mean over the samples of earlier steps."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.register_buffer("seen", torch.zeros(24))

    def middle(self, hidden: Tensor) -> Tensor:
        before = self.seen.clone()
        if self.training:
            self.seen.lerp_(hidden.detach().mean(0), 0.5)
        return hidden - before


class MovingAttribute(Net):
    """Divides by a size of the samples of the step before."""

    size = 1.0

    def middle(self, hidden: Tensor) -> Tensor:
        hidden = hidden / self.size
        if self.training:
            self.size = 1 + float(hidden.detach().abs().mean())
        return hidden


class Deep(Net):
    """Has a layer more."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.layer = nn.Linear(24, 24)

    def middle(self, hidden: Tensor) -> Tensor:
        return self.layer(torch.tanh(hidden))


class SometimesSkipped(Net):
    """Leaves a layer out of some steps, the same on all ranks."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.layer = nn.Linear(24, 24)

    def middle(self, hidden: Tensor) -> Tensor:
        skipped = self.training and float(torch.rand(())) < 0.5
        return hidden if skipped else hidden + self.layer(hidden)


class TurnByTurn(Net):
    """Uses a layer in every second step alone, by a counter."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.layers = nn.ModuleList([nn.Linear(24, 24), nn.Linear(24, 24)])
        self.calls = 0

    def middle(self, hidden: Tensor) -> Tensor:
        self.calls += self.training
        return self.layers[self.calls % 2](hidden)


class Single(Net):
    """Can't be run in float64, and normalises by its batch."""

    def middle(self, hidden: Tensor) -> Tensor:
        return hidden @ torch.eye(24, dtype=torch.float32) - hidden.mean(0)

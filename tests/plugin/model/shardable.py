"""Models that hold, call or return their layers in ways that sharding may not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Plain(nn.Module):
    """Three layers, of which a variant may treat the second in its own way."""

    def __init__(self, classes: int, shape: Sequence[int]) -> None:
        super().__init__()
        self.first = nn.Linear(shape[0] * shape[1] * shape[2], 16)
        self.second = nn.Linear(16, 16)
        self.head = nn.Linear(16, classes)

    def middle(self, values: Tensor) -> Tensor:
        return torch.relu(self.second(values))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.middle(torch.relu(self.first(images.flatten(1)))))


class WeightRead(Plain):
    """Reads a layer's weight without calling the layer."""

    def middle(self, values: Tensor) -> Tensor:
        return functional.linear(values, self.second.weight, self.second.bias)


class CalledTwice(Plain):
    """Calls one layer twice."""

    def middle(self, values: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.second(values))))


class OtherMethod(Plain):
    """Calls a submodule by another method than its call."""

    def __init__(self, classes: int, shape: Sequence[int]) -> None:
        super().__init__(classes, shape)
        self.second = Plain(16, (4, 4, 1))

    def middle(self, values: Tensor) -> Tensor:
        return self.second.middle(values)


@dataclass
class Wrapped:
    """An output that hides its tensor from torch."""

    values: Tensor


class Hides(nn.Linear):
    """Returns an object of its own."""

    def forward(self, values: Tensor) -> Any:
        return Wrapped(super().forward(values))


class HiddenOutput(Plain):
    """Has a layer whose output hides its tensor."""

    def __init__(self, classes: int, shape: Sequence[int]) -> None:
        super().__init__(classes, shape)
        self.second = Hides(16, 16)

    def middle(self, values: Tensor) -> Tensor:
        return self.second(values).values


class OnlyInTraining(Plain):
    """Uses a layer in training alone."""

    def middle(self, values: Tensor) -> Tensor:
        return values + torch.tanh(self.second(values)) if self.training else values


class Recurrent(Plain):
    """Has a recurrent layer, which holds its weights in a list besides."""

    def __init__(self, classes: int, shape: Sequence[int]) -> None:
        super().__init__(classes, shape)
        self.second = nn.LSTM(16, 16, batch_first=True)

    def middle(self, values: Tensor) -> Tensor:
        return self.second(values[:, None])[0][:, -1]


class Scalar(Plain):
    """Has a parameter without a dimension, and one without an element."""

    def __init__(self, classes: int, shape: Sequence[int]) -> None:
        super().__init__(classes, shape)
        self.scale, self.empty = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(0, 4))

    def middle(self, values: Tensor) -> Tensor:
        return super().middle(values) * self.scale + self.empty.sum()


class Listed(Plain):
    """Holds its weights in a list, too, and uses them from there."""

    def __init__(self, classes: int, shape: Sequence[int]) -> None:
        super().__init__(classes, shape)
        self.listed = [self.second.weight]

    def middle(self, values: Tensor) -> Tensor:
        return functional.linear(values, self.listed[0], self.second.bias)


class Tied(Plain):
    """Has one weight in two layers."""

    def __init__(self, classes: int, shape: Sequence[int]) -> None:
        super().__init__(classes, shape)
        self.third = nn.Linear(16, 16)
        self.third.weight = self.second.weight

    def middle(self, values: Tensor) -> Tensor:
        return torch.relu(self.third(super().middle(values)))

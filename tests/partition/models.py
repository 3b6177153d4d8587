"""Models that are awkward to cut, one reason each; and the models of the project by name."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from src.config import Config
from src.models import adapt
from tests.support import config

SHAPE = (28, 28, 1)


def of(name: str, *words: str) -> tuple[Config, nn.Module]:
    """A model of conf/model/ with the seed's weights, in float64."""
    chosen = config("strategy=pipeline", f"model={name}", *words)
    torch.manual_seed(0)
    return chosen, adapt.build(chosen, classes=10, shape=SHAPE).double()


def images(count: int, size: int = 28) -> Tensor:
    """Random images in the layout in which the feed gives them."""
    torch.manual_seed(1)
    return torch.randn(count, size, size, 1, dtype=torch.float64).permute(0, 3, 1, 2)


class InPlace(nn.Module):
    """Every kind of writing into an operand, one of them on a value that is read again later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu(self.first(inputs))
        grown = self.second(hidden)
        grown += hidden
        grown.mul_(0.5)
        again = grown.add_(0.1)
        joined = functional.relu(grown * again, inplace=True)
        return self.head(joined.mean(dim=(2, 3)))


class Sizes(nn.Module):
    """Sizes are read early and used late."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 28 * 28, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        count = inputs.size(0)
        height, width = inputs.shape[-2:]
        hidden = self.conv(inputs)
        hidden = torch.tanh(hidden)
        return self.head(hidden.reshape(count, 4 * height * width))


class Flag(nn.Module):
    """A functional dropout whose flag follows the module's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(784, 32), nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(self.first(inputs.flatten(1)))
        return self.head(functional.dropout(hidden, p=0.5, training=self.training))


class Tied(nn.Module):
    """One layer used twice: its weights can't be on two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(784, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs.flatten(1)))
        hidden = torch.relu(self.again(hidden))
        return self.head(torch.relu(self.again(hidden)))


class Tables(nn.Module):
    """A table that all blocks read, as positions are, by a view of it; `kind` says what else is done to it.

    With `written` the second block moves the table, with `viewed` by a view of it; with `normed` its values
    are the statistics of BatchNorms.
    """

    def __init__(self, kind: str = "read") -> None:
        super().__init__()
        self.kind = kind
        self.first, self.head = nn.Linear(784, 32), nn.Linear(32, 10)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.register_buffer("table", torch.linspace(0.5, 1.5, 64).reshape(2, 32))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs.flatten(1))
        for number, block in enumerate(self.blocks):
            shift, scale = self.table.chunk(2)
            if self.kind == "normed":
                mean, variance = shift.squeeze(0), scale.squeeze(0)
                hidden = functional.batch_norm(hidden, mean, variance, training=self.training)
            else:
                hidden = hidden + shift + scale
            hidden = torch.tanh(block(hidden))
            if number == 1 and self.kind == "written":
                self.table.mul_(0.9)
            if number == 1 and self.kind == "viewed":
                self.table.chunk(2)[0].squeeze(0).add_(0.1)
        return self.head(hidden)


class OwnParameter(nn.Module):
    """`forward` reads a parameter itself; and an argument that nobody gives has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale, self.head = (
            nn.Linear(784, 32),
            nn.Parameter(torch.ones(32)),
            nn.Linear(32, 10),
        )

    def forward(self, inputs: Tensor, extra: Tensor | None = None) -> Tensor:
        hidden = self.first(inputs.flatten(1))
        if extra is not None:
            hidden = hidden + extra
        return self.head(torch.tanh(hidden) * self.scale)


class Branching(nn.Module):
    """What it computes depends on the data: torch.fx refuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(784, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs.flatten(1))
        return hidden if hidden.sum() > 0 else -hidden


class Inside(nn.Sequential):
    """A chain, one of whose links can't be traced."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 784), Branching(), nn.Linear(10, 10))


class OtherInEvaluation(nn.Module):
    """Runs another operation in evaluation than in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(784, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs.flatten(1))
        return torch.tanh(hidden) if self.training else torch.relu(hidden)

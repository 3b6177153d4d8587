"""Layers are proposed where nothing between them mixes features or heads, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from src.runtime.torch.tensor.proposals import propose
from src.tasks.torch.outputs import model_outputs
from tests.plugin.model import split

SHAPE = (4, 4, 1)


class Branching(split.Between):
    """What lies between the layers is returned, too."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        features = self.first(images.flatten(1))
        return self.last(torch.relu(features)), features


class Gated(nn.Module):
    """Of three layers, in a block that adds to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.w1, self.w2, self.w3 = (
            nn.RMSNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 16)
        )  # fmt: skip

    def forward(self, features: Tensor) -> Tensor:
        normed = self.norm(features)
        return features + self.w2(nn.functional.silu(self.w1(normed)) * self.w3(normed))


class Frozen(nn.Module):
    """Runs its body under `no_grad`, which is a block of its own in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = between(nn.Tanh()), nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.body(features)
        return self.head(features)


def branching() -> nn.Module:
    return Branching(3, (4, 4, 4), nn.Identity())


def between(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 4), layer, nn.Linear(4, 2))


def shared() -> nn.Module:
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.ReLU(), layer)


IMAGES, ROWS = (2, 1, 4, 4), (2, 8)
ATTENTION = {
    **{f"between.{name}": "colwise" for name in ("query", "key", "value")},
    "between.out": "rowwise",
}


@pytest.mark.parametrize(
    ("build", "shape", "ranks", "expected"),
    [
        (lambda: between(nn.Tanh()), ROWS, 2, {"0": "colwise", "2": "rowwise"}),
        (lambda: between(nn.Tanh()), ROWS, 3, {}),
        (lambda: between(nn.LayerNorm(4)), ROWS, 2, {}),
        (Gated, ROWS, 2, {"w1": "colwise", "w3": "colwise", "w2": "rowwise"}),
        (lambda: split.heads(classes=3, shape=SHAPE), IMAGES, 2, ATTENTION),
        # Four heads, of which each rank would have a half.
        (
            lambda: split.heads(classes=3, shape=SHAPE),
            IMAGES,
            8,
            {"between.out": "colwise", "last": "rowwise"},
        ),
        (lambda: split.scaled(classes=3, shape=SHAPE), IMAGES, 2, {}),
        (lambda: split.mixed(classes=3, shape=SHAPE), IMAGES, 2, {}),
        (branching, (2, 16), 2, {}),
        (shared, ROWS, 2, {}),
        (Frozen, ROWS, 2, {"head.0": "colwise", "head.2": "rowwise"}),
    ],
)
def test_what_is_recognised(
    build: Callable[[], nn.Module], shape: tuple[int, ...], ranks: int, expected: dict[str, str]
) -> None:
    assert propose(build(), (torch.randn(shape),), model_outputs, ranks) == expected

"""A replica of a server's worker refuses what servers wouldn't train as one device does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from src.config import ConfigError
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import checkpoint
from src.runtime.torch.parameter_server.replica import Replica
from src.strategies.torch.local_sgd import Average
from tests.prepared_data import load_arrays
from tests.support import config

WORDS = (
    "workers=2", "batch=16", "dataset=synthetic", "dataset.shape=[8,8,1]", "dataset.classes=10",
    "dataset.samples=100", "model=custom",
)  # fmt: skip


class Counting(nn.Module):
    """Two layers, and counters of its passes in training."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.calls = nn.Linear(64, 64), nn.Linear(64, 10), 0
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("begun", torch.zeros(1, dtype=torch.bool))

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        self.begun.fill_(True)
        return self.head(self.hidden(images.flatten(1)))

    def hidden(self, images: Tensor) -> Tensor:
        return self.trunk(images)


class Thawing(Counting):
    """Trains its trunk from the tenth pass on, which no look takes."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk.requires_grad_(False)

    def hidden(self, images: Tensor) -> Tensor:
        self.trunk.requires_grad_(self.calls > 9)
        return self.trunk(images)


class Dropping(Counting):
    """Leaves its trunk out of the third pass."""

    def hidden(self, images: Tensor) -> Tensor:
        return images if self.calls == 3 else self.trunk(images)


class Bounded(Counting):
    """Bounds its weights, which the fourth pass is the first to write into."""

    def hidden(self, images: Tensor) -> Tensor:
        if self.calls == 4:
            self.trunk.weight.data.clamp_(-0.01, 0.01)
        return self.trunk(images)


def replica(model: type[nn.Module], *words: str) -> Replica:
    chosen = config("strategy=parameter_server", *WORDS, f"model.path={__name__}.{model.__name__}", *words)
    return Replica(RankContext(chosen, 0, 2, load_arrays(chosen.dataset), Path(), (0,)))


def train(model: type[nn.Module], *words: str) -> None:
    made = replica(model, *words)
    for _ in range(12):
        made.gradient(np.arange(8), 0, 8.0)


@pytest.mark.parametrize(
    ("model", "words", "told"),
    [
        (Thawing, (), r"^trunk.weight gets a gradient in some steps and got none in the first ones"),
        (Dropping, (), r"^trunk.weight gets no gradient in some steps, and a server's update would move it"),
        (Dropping, ("optimizer.name=adam", "optimizer.momentum=0"), "gets no gradient in some steps"),
        (Bounded, (), "Bounded: its forward pass writes into its parameters, which servers have"),
    ],
)
def test_what_servers_would_train_otherwise_is_refused(
    model: type[nn.Module], words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        train(model, "strategy.mode=sync", *words)


@pytest.mark.parametrize("words", [("strategy.mode=sync", "optimizer.momentum=0"), ("strategy.mode=async",)])
def test_a_gradient_that_there_is_not_is_zeros_where_that_is_the_same(words: tuple[str, ...]) -> None:
    train(Dropping, *words)


def test_buffers_of_all_kinds_are_exchanged() -> None:
    one, other = replica(Counting), replica(Counting)
    one.gradient(np.arange(8), 0, 8.0)
    other.load_buffers(tuple(one.buffers()))
    assert int(other.model.seen) == 1 and bool(other.model.begun)


def test_what_an_optimizer_has_not_moved_begins_with_zeros() -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False))
    resumed = {
        "model": model.state_dict(),
        "optimizer": {"state": {"1.weight": {"momentum_buffer": torch.tensor([[3.0], [4.0]])}}},
    }
    found = checkpoint.restore_vector(resumed, model, ["0.weight", "1.weight"])
    assert found["momentum_buffer"].tolist() == [0, 0, 3, 4]
    resumed["optimizer"]["state"].clear()
    assert checkpoint.restore_vector(resumed, model, ["0.weight"]) == {}


def test_what_is_frozen_later_is_averaged_all_the_same() -> None:
    chosen = config("strategy=local_sgd", "workers=2")
    recorder: Recorder = SimpleNamespace(note=print, config=chosen)  # type: ignore[assignment]
    average = Average(SimpleNamespace(config=chosen, world_size=2), recorder)  # type: ignore[arg-type]
    model = Counting()
    model.head.bias.requires_grad_(False)
    assert [each.shape for each in average.trained(model)] == [(64, 64), (64,), (10, 64)]
    model.trunk.requires_grad_(False)
    assert len(average.trained(model)) == 3

"""Whatever operations of a stage are computed again, gradients, outputs and buffers are those without."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from src.config import ConfigError
from src.partition.torch.graph import operations
from src.partition.torch.stage import Stage


class Rounded(torch.autograd.Function):
    """A rounding with a gradient of its own, by which a chain is cut between its links alone."""

    @staticmethod
    def forward(_: object, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        return gradient


class Link(nn.Module):
    """A link of a chain that rounds."""

    def forward(self, x: Tensor) -> Tensor:
        return Rounded.apply(10 * x) / 10


class InPlace(nn.Module):
    """A layer that writes into what it is given, and saves it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2.0)
        return torch.sin(self.inner(x))


class Exported(nn.Module):
    """A model that torch.export traces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = InPlace(), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h.add_(1.0)
        return self.second(torch.relu_(self.norm(h)) + h)


def chain() -> nn.Module:
    return nn.Sequential(InPlace(), nn.BatchNorm1d(6), InPlace(), Link(), nn.Dropout(0.3), nn.Linear(6, 3))


@pytest.mark.parametrize("build", [Exported, chain])
def test_runs_that_are_computed_again_change_nothing(build: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, inputs = build().train(), torch.randn(8, 6)
    graph = operations(model, inputs.clone())
    values, count = graph.values((inputs,)), len(graph.operations)
    state = copy.deepcopy(model.state_dict())

    def step(again: list[tuple[int, int]]) -> list[Tensor]:
        model.load_state_dict(state)
        model.zero_grad()
        torch.manual_seed(1)
        stage = Stage.of(graph, 0, count, values, again)
        assert len(stage.runs) >= len(again)
        output = stage(inputs.clone())
        output.square().sum().backward()
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        return [output.detach(), *(each.clone() for each in [*gradients, *model.buffers()])]

    expected = step([])
    for start, stop in itertools.combinations(range(count + 1), 2):
        for found, value in zip(step([(start, stop)]), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=0, atol=0)


class Centred(nn.Module):
    """Reads a buffer that each pass moves, and writes into another one in some of its passes."""

    mean: Tensor
    largest: Tensor

    def __init__(self, writes: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("largest", torch.zeros(()))
        self.writes, self.passes = writes, 0

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) - self.mean
        self.mean.lerp_(hidden.detach().mean(0), 0.2)
        if self.writes:
            self.passes += 1
            if self.passes in self.writes:
                self.largest.fill_(float(x.detach().max()))
        return self.second(hidden)


def test_each_micro_batch_finds_the_buffers_as_its_forward_pass_did() -> None:
    torch.manual_seed(0)
    model, inputs = Centred(), torch.randn(3, 8, 6)
    graph = operations(model, inputs[0])
    values, count = graph.values((inputs[0],)), len(graph.operations)
    state = copy.deepcopy(model.state_dict())

    def step(*, whole: bool, again: list[tuple[int, int]]) -> list[Tensor]:
        model.load_state_dict(state)
        model.zero_grad()
        stage = Stage.of(graph, 0, count, values, again)
        # All are under way at once.
        losses = [
            (stage.computed_again(stage, (each,)) if whole else stage(each)).square().sum() for each in inputs
        ]
        for each in losses:
            each.backward()
        return [each.grad.clone() for each in model.parameters()] + [each.clone() for each in model.buffers()]

    expected = step(whole=False, again=[])
    for found in (step(whole=True, again=[]), step(whole=False, again=[(0, count)])):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_buffer_that_doesnt_move_in_the_first_pass_is_refused() -> None:
    model, x = nn.Sequential(Centred(writes=(2,))), torch.randn(8, 6)
    stage = Stage(model, (), (), last=True)
    stage.computed_again(stage, (x,))
    with pytest.raises(ConfigError, match=r"the buffer part\.0\.largest changes in some forward passes"):
        stage.computed_again(stage, (x,))
    # One that moves in the first pass may stay in others.
    stage = Stage(nn.Sequential(Centred(writes=(1, 3))), (), (), last=True)
    for _ in range(3):
        stage.computed_again(stage, (x,))

"""Whatever operations of a stage are computed again, gradients, outputs and buffers are those without."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

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

"""Backward passes for inputs and for weights apart give the whole pass's gradients, to each parameter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.compat import pipelining
from src.partition.torch import comparison
from src.partition.torch.comparison import CutDiffersError
from src.partition.torch.graph import operations
from src.tasks.torch.outputs import model_outputs

LABELS = torch.tensor([0, 3, 1, 9])


class HandsOn(nn.Module):
    """Makes something of weights alone in the middle, which a later layer reads; one weight is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 10)
        self.position, self.scale = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(values))
        shift = torch.sin(self.position) * self.scale
        hidden = torch.tanh(functional.linear(self.second(hidden), self.first.weight.t()))
        return self.head(hidden * self.scale + shift)


class Residual(nn.Module):
    """A stage of it sends what it computes with further weights, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 10)

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.first(values))
        return self.head(hidden + torch.tanh(self.second(hidden)))


def check(model: nn.Module, inputs: Tensor) -> None:
    def loss(outputs: tuple[Tensor, ...]) -> Tensor:
        return functional.cross_entropy(outputs[0], LABELS)

    graph = operations(model, inputs, tied="reduce")
    comparison.check(model, graph, inputs, model_outputs, loss, splits=True)


@pytest.mark.parametrize("stages", [2, 3, 4, 64])
@pytest.mark.parametrize("model", [HandsOn, Residual])
def test_each_parameter_has_its_gradient(
    model: type[nn.Module], stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(comparison, "STAGES", stages)
    check(model(), torch.randn(4, 6))


def test_one_that_no_gradient_of_an_input_comes_by_is_missed_without_its_own_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(pipelining, "apart_from_inputs", lambda *_: [])
    with pytest.raises(CutDiffersError, match="the gradient of position is there only without them"):
        check(HandsOn(), torch.randn(4, 6))


def test_parameters_apart_from_inputs() -> None:
    first, second, third = (nn.Parameter(torch.randn(3)) for _ in range(3))
    given = torch.randn(3, requires_grad=True)
    outputs = [given * first, second * 2 + third, third * given]
    assert pipelining.apart_from_inputs(outputs, [given, "text"], [first, second, third]) == [second]
    assert pipelining.apart_from_inputs(outputs, [], [first, second, third]) == [first, second, third]

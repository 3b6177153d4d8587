"""Backward passes for inputs and for weights apart give the whole pass's gradients, to each parameter."""

from __future__ import annotations

import itertools

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


class ReadsTwice(nn.Module):
    """Makes something of weights alone, and reads it in the same stage and in a later one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))
        self.position, self.head = nn.Parameter(torch.randn(6)), nn.Linear(6, 10)

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(values))
        shift = torch.sin(self.position)
        hidden = torch.tanh(self.second(hidden + shift))
        return self.head(torch.tanh(self.third(hidden)) + shift)


class Tied(nn.Module):
    """Two layers of it share a weight, and have biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 10)
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(values))))
        return self.head(torch.tanh(functional.linear(hidden, self.second.weight.t(), self.bias)))


class Returned(nn.Module):
    """Returns what its last layer reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 10)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.sigmoid(self.second(torch.sigmoid(self.first(values))))
        return self.head(hidden), hidden


def loss(outputs: tuple[Tensor, ...]) -> Tensor:
    """Return a loss of all outputs."""
    return functional.cross_entropy(outputs[0], LABELS) + sum(each.square().sum() for each in outputs[1:])


def check(model: nn.Module, inputs: Tensor, tied: str = "reduce") -> None:
    """Check the gradients of stages against those of the whole model."""
    graph = operations(model, inputs, tied=tied)
    comparison.check(model, graph, inputs, model_outputs, loss, splits=True)


@pytest.mark.parametrize("tied", ["together", "reduce"])
@pytest.mark.parametrize("model", [HandsOn, Residual, ReadsTwice, Tied, Returned])
def test_each_parameter_has_its_gradient(model: type[nn.Module], tied: str) -> None:
    torch.manual_seed(0)
    check(model(), torch.randn(4, 6), tied)


@pytest.mark.parametrize("tied", ["together", "reduce"])
@pytest.mark.parametrize("model", [HandsOn, Residual, ReadsTwice, Tied, Returned])
def test_each_parameter_has_its_gradient_wherever_three_stages_are_cut(
    model: type[nn.Module], tied: str
) -> None:
    torch.manual_seed(0)
    whole, inputs = model(), (torch.randn(4, 6),)
    graph = operations(whole, inputs, tied=tied)
    expected = comparison.whole_step(whole, inputs, model_outputs, loss, precision="fp32")
    count = len(graph.operations)
    for places in itertools.combinations(range(1, count), 2):
        ends = (0, *places, count)
        cut = comparison.staged_step(
            whole, graph, inputs, model_outputs, loss, precision="fp32", splits=True, ends=ends
        )
        assert comparison.first_difference(expected, cut, 1e-5) is None, ends


def test_one_that_no_gradient_of_an_input_comes_by_is_missed_without_its_own_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(pipelining, "apart_from_inputs", lambda *_: pipelining.Apart([], []))
    with pytest.raises(CutDiffersError, match="the gradient of position is there only without them"):
        check(HandsOn(), torch.randn(4, 6))


def test_parameters_apart_from_inputs() -> None:
    first, second, third = (nn.Parameter(torch.randn(3)) for _ in range(3))
    given = torch.randn(3, requires_grad=True)
    outputs = [given * first, second * 2 + third, third * given]
    found = pipelining.apart_from_inputs(outputs, [given, "text"], [first, second, third])
    assert found == ([1], [second, third])
    found = pipelining.apart_from_inputs(outputs, [], [first, second, third])
    assert found == ([0, 1, 2], [first, second, third])

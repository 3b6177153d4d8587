"""What a model does in training is seen by running it, whatever its classes and options are called."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from src.runtime.torch import model_look

NOTHING = {
    "batch_statistics": False,
    "draws_random_numbers": False,
    "moves_buffers": [],
    "computes_over_batch": False,
}


class Applied(nn.Module):
    """A dense layer, and a function of the module and what that gives."""

    def __init__(self, function: Callable[[Applied, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.other, self.function = nn.Linear(4, 3), nn.Linear(4, 3), function
        self.generator = torch.Generator().manual_seed(0)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, values: Tensor) -> Tensor:
        return self.function(self, self.layer(values))


def moved(model: Applied, hidden: Tensor) -> Tensor:
    model.mean.lerp_(hidden.detach().mean(0), 0.1)
    return hidden


FUNCTIONS: dict[str, tuple[Callable[[Applied, Tensor], Tensor], dict[str, object]]] = {
    "nothing": (lambda _, hidden: hidden.relu(), {}),
    "torch": (lambda _, hidden: nn.functional.dropout(hidden), {"draws_random_numbers": True}),
    "numpy": (lambda _, hidden: hidden * float(np.random.rand()), {"draws_random_numbers": True}),
    "its own": (
        lambda model, hidden: hidden + torch.randn(3, generator=model.generator),
        {"draws_random_numbers": True},
    ),
    "buffer": (moved, {"moves_buffers": ["mean"]}),
    # A number for all of them is no sample's output.
    "a further term": (lambda _, hidden: (hidden, hidden.mean()), {}),
    "softmax over the batch": (lambda _, hidden: hidden.softmax(0), {"computes_over_batch": True}),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_a_forward_pass_does_is_seen(function: str) -> None:
    called, expected = FUNCTIONS[function]
    torch.manual_seed(0)
    model = Applied(called)
    assert model_look.facts(model, [torch.randn(4, 4)]) == NOTHING | expected
    assert not model.mean.any()


def test_batchnorm_is_told_from_the_rest() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    assert model_look.facts(model, [torch.randn(4, 4)]) == NOTHING | {"batch_statistics": True}


def reached(model: nn.Module) -> tuple[set[str], bool]:
    values = torch.randn(2, 4)
    return model_look.reached_by(model, lambda: model(values).sum(), torch.device("cpu"))


def test_parameters_that_get_no_gradient_are_found() -> None:
    model = Applied(lambda _, hidden: hidden)
    assert reached(model) == ({"layer.weight", "layer.bias"}, True)
    model.layer.bias.requires_grad_(False)
    assert reached(model) == ({"layer.weight"}, True)


def test_layers_that_are_left_out_at_random_are_found() -> None:
    class Skipping(Applied):
        def forward(self, values: Tensor) -> Tensor:
            return self.layer(values) + (self.other(values) if torch.rand(()) < 0.5 else 0)

    assert reached(Skipping(lambda _, hidden: hidden)) == (BOTH, False)


BOTH = {f"{layer}.{kind}" for layer in ("layer", "other") for kind in ("weight", "bias")}


def test_layers_that_are_chosen_by_data_are_found() -> None:
    class Experts(Applied):
        def forward(self, values: Tensor) -> Tensor:
            found = torch.zeros(len(values), 3)
            for layer, rows in ((self.layer, values[:, 0] > 0), (self.other, values[:, 0] <= 0)):
                if rows.any():
                    found[rows] = layer(values[rows])
            return found

    model, values = Experts(lambda _, hidden: hidden), torch.tensor([[1.0, 2, 3, 4], [-1, 2, 3, 4]])
    cpu = torch.device("cpu")
    # Of two samples each has one of its experts.
    assert model_look.reached_by(model, lambda: model(values).sum(), cpu) == (BOTH, True)
    runs = [lambda place=place: model(values[place : place + 1]).sum() for place in range(2)]
    assert model_look.reached_by_each(model, runs, cpu) == (BOTH, False)
    assert model_look.reached_by_each(model, runs[:1] * 2, cpu) == (
        {"layer.weight", "layer.bias"}, True,
    )  # fmt: skip

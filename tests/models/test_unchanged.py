"""A look at a model leaves nothing behind, and an evaluation nothing that training reads."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from src.models.torch.unchanged import evaluating, unchanged


class Untidy(nn.Module):
    """Leaves something of every kind behind in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.frozen = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.frozen.eval()
        self.register_buffer("moved", torch.zeros(3))
        self.register_buffer("replaced", torch.zeros(3))
        self.state = torch.zeros(3)
        self.calls, self.history, self.by_name = 0, [1], {"a": 1}

    def forward(self, values: Tensor) -> Tensor:
        with torch.no_grad():
            self.layer.weight.add_(1)
            self.moved.add_(1)
            self.state.add_(1)
        self.replaced = self.replaced + 1
        self.cache = values
        self.calls += 1
        self.history.append(2)
        self.by_name["b"] = 2
        self.frozen.train()
        noise = torch.randn(3) + random.random() + float(np.random.rand())
        return self.layer(values) + noise


def described(model: Untidy) -> dict[str, object]:
    return {
        "tensors": {name: value.tolist() for name, value in model.state_dict().items()},
        "objects": [id(value) for value in (*model.parameters(), *model.buffers(), model.state)],
        "gradients": [parameter.grad for parameter in model.parameters()],
        "others": (model.state.tolist(), model.calls, list(model.history), dict(model.by_name)),
        "kept": sorted(vars(model)),
        "modes": [module.training for module in model.modules()],
        "random": (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()),
    }


def test_a_look_leaves_nothing_behind() -> None:
    model = Untidy()
    before = described(model)
    with unchanged(model):
        model(torch.ones(2, 3)).sum().backward()
        assert model.calls == 1 and model.layer.weight.grad is not None
    assert described(model) == before


def test_an_evaluation_changes_nothing_and_each_module_has_its_own_mode_again() -> None:
    model = Untidy()
    model.layer.requires_grad_(False)
    before = described(model)
    weight = model.layer.weight.clone()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
        assert not model(torch.ones(2, 3)).requires_grad
    # No copy of the weights is made: a model that writes into them in evaluation has done so.
    model.layer.weight.copy_(weight)
    assert described(model) == before


def test_a_mode_that_an_own_train_sets_stays() -> None:
    class Stubborn(nn.Sequential):
        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self[1].eval()
            return self

    model = Stubborn(nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
    with evaluating(model):
        pass
    assert [module.training for module in model.modules()] == [True, True, False]


class LowRank(nn.Module):
    """Merges its update into the weight to evaluate, and takes it out again to train, as loralib does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.update = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.full((2, 2), 0.1))
        self.merged = False

    def train(self, mode: bool = True) -> LowRank:
        super().train(mode)
        if self.merged == mode:
            self.weight.data += self.update * (-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, values: Tensor) -> Tensor:
        return values @ (self.weight if self.merged else self.weight + self.update)


def test_weights_that_a_model_merges_to_evaluate_are_trained_as_they_were() -> None:
    model, values = LowRank(), torch.eye(2)
    for _ in range(2):
        with evaluating(model):
            assert model.merged and torch.allclose(model(values), torch.full((2, 2), 1.1))
        assert not model.merged and torch.equal(model.weight, torch.ones(2, 2))

"""A backward pass has the weights of its forward pass, whatever was updated between the two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from src.runtime.torch.pipeline.weight_versions import WeightVersions


class Scale(torch.autograd.Function):
    """Keeps a weight itself for its backward pass."""

    @staticmethod
    def forward(ctx: object, given: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(given, weight)
        return given * weight

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, Tensor]:
        given, weight = ctx.saved_tensors
        return gradient * weight, (gradient * given).sum(0)


class Mixed(nn.Module):
    """Layers that keep their weights as they are, as views, and in a list of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.randn(6))
        self.rows = nn.LSTM(6, 6, batch_first=True)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 1)

    def forward(self, given: Tensor) -> Tensor:
        hidden = Scale.apply(self.norm(torch.tanh(self.first(given))), self.scale)
        rows, _ = self.rows(hidden[:, None])
        return self.last(self.frozen(rows[:, 0])).square().mean()


def again(model: nn.Module, given: Tensor) -> Tensor:
    return checkpoint(model, given, use_reentrant=False)


@pytest.mark.parametrize("run", [lambda model, given: model(given), again], ids=["kept", "computed again"])
@pytest.mark.parametrize("under_way", [1, 2, 4])
def test_stale_steps_are_those_of_copies(run: Callable[[nn.Module, Tensor], Tensor], under_way: int) -> None:
    torch.manual_seed(0)
    model = Mixed().double()
    batches = torch.randn(8, 5, 6, dtype=torch.float64)
    expected = stale_copies(model, batches, under_way)
    versions, losses = WeightVersions(model.parameters()), list[Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    seen: list[int] = []
    for number in range(len(batches) + under_way):
        if number >= under_way:
            optimizer.zero_grad()
            versions.load(seen[number - under_way])
            losses[number - under_way].backward()
            following = min(seen[number - under_way + 1 :], default=versions.newest + 1)
            versions.update(optimizer.step, oldest=following)
            assert versions.held == versions.newest - following + 1
        if number < len(batches):
            versions.load(versions.newest)
            seen.append(versions.newest)
            losses.append(run(model, batches[number]))
    versions.restart()
    assert versions.held == 1
    assert [float(loss) for loss in losses] == pytest.approx(expected, rel=1e-12)


def stale_copies(model: nn.Module, batches: Tensor, under_way: int) -> list[float]:
    """Losses of the same, by a whole copy of the model for each version."""
    copies, losses, stepped = [clone(model)], list[float](), clone(model)
    optimizer = torch.optim.SGD(stepped.parameters(), 0.5, momentum=0.9)
    for number, batch in enumerate(batches):
        if number >= under_way:
            old = copies[max(0, number - 2 * under_way + 1)]
            old.zero_grad()
            old(batches[number - under_way]).backward()
            for ours, theirs in zip(stepped.parameters(), old.parameters(), strict=True):
                ours.grad = None if theirs.grad is None else theirs.grad.clone()
            optimizer.step()
            copies.append(clone(stepped))
        losses.append(float(copies[-1](batch).detach()))
    return losses


def clone(model: nn.Module) -> nn.Module:
    made = Mixed().double()
    made.load_state_dict(model.state_dict())
    return made


def test_a_pass_that_has_the_wrong_version_loaded_has_other_gradients() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4))
    versions = WeightVersions(layer.parameters())
    given = torch.randn(3, 4)

    def gradient(loaded: int) -> Tensor:
        layer.zero_grad()
        versions.load(0)
        loss = layer(given).sigmoid().square().sum()
        versions.load(loaded)
        loss.backward()
        return layer[0].weight.grad.clone()

    def step() -> None:
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(2)

    right = gradient(0)
    versions.update(step, oldest=0)
    assert torch.equal(gradient(0), right)
    assert not torch.allclose(gradient(1), right)


def test_casts_of_an_older_version_are_not_reused() -> None:
    layer = nn.Linear(4, 4, bias=False)
    versions, given = WeightVersions(layer.parameters()), torch.ones(1, 4)

    def step() -> None:
        with torch.no_grad():
            layer.weight.zero_()

    with torch.autocast("cpu", torch.bfloat16):
        assert layer(given).abs().sum() > 0
        versions.update(step, oldest=0)
        assert layer(given).abs().sum() == 0
        versions.load(0)
        assert layer(given).abs().sum() > 0

"""Large tensors are filled with a few numbers that are drawn as they would be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from src.predict.draws import DRAWN, drawn_again, laid_out_alike
from src.runtime.torch import memory_format


@pytest.mark.parametrize("size", [DRAWN + 1, 2 * DRAWN, 2 * DRAWN + 5, 5 * DRAWN - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_tensors_have_the_same_numbers_again(size: int, dtype: torch.dtype) -> None:
    with drawn_again():
        flat = torch.full((1, size), -7.0, dtype=dtype).uniform_(2, 3).view(-1)
    assert torch.equal(flat[DRAWN:], flat[:-DRAWN])
    assert 2 <= flat.min() < flat.max() <= 3 and abs(flat.float().mean() - 2.5) < 0.01


def test_small_ones_and_modules_draw_as_ever() -> None:
    with drawn_again():
        torch.manual_seed(3)
        small, layer = torch.empty(7).normal_(), nn.Linear(1024, 512)
        named = torch.empty(3 * DRAWN).normal_(mean=5.0, std=0.1)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            nn.Parameter(torch.empty(2 * DRAWN)).normal_()
    torch.manual_seed(3)
    assert torch.equal(small, torch.empty(7).normal_())
    assert layer.weight.requires_grad and torch.linalg.matrix_rank(layer.weight.detach()) == 512
    assert abs(layer.weight.std() - 1 / (1024 * 3) ** 0.5) < 0.001
    assert abs(named.mean() - 5) < 0.01 and abs(named.std() - 0.1) < 0.01
    # Afterwards each has its own again.
    assert len(torch.empty(2 * DRAWN).uniform_().unique()) > 1.5 * DRAWN


class Strided(nn.Module):
    """A model whose second convolution sees a single pixel where the first one strides far enough."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, stride=stride), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        done: Tensor = self.second(self.first(inputs))
        return done


def test_models_that_are_alike_are_laid_out_as_the_first_one_is() -> None:
    looks: list[nn.Module] = []
    inputs = [torch.rand(1, 2, 6, 6)]

    def laid_out(stride: int) -> list[tuple[int, ...]]:
        model = Strided(stride)
        model.first.register_forward_pre_hook(lambda *_: looks.append(model))
        assert memory_format.lay_out(model, inputs) is None
        return [each.stride() for each in model.parameters()]

    plain = {stride: laid_out(stride) for stride in (1, 6)}
    assert plain[1] != plain[6]
    looks.clear()
    with laid_out_alike({}):
        assert {stride: laid_out(stride) for stride in (1, 6)} == plain
        seen = len(looks)
        assert {stride: laid_out(stride) for stride in (6, 1)} == plain
    # Each is looked at in two passes, once.
    assert seen == len(looks) == 4
    assert laid_out(1) == plain[1] and len(looks) == 6


class Flat(nn.Conv2d):
    """A convolution that can't be laid out: it views its weights as one row."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.weight.view(-1)[0]


def test_what_can_not_be_laid_out_is_not_the_next_time() -> None:
    with laid_out_alike({}):
        models = [nn.Sequential(Flat(2, 4, 3)) for _ in range(2)]
        failures = [memory_format.lay_out(model, [torch.rand(1, 2, 6, 6)]) for model in models]
    assert failures[0] is not None and failures[0] == failures[1]
    assert all(each.is_contiguous() for model in models for each in model.parameters())
    assert all(memory_format.contiguous_inputs in model._forward_pre_hooks.values() for model in models)

"""Large tensors are filled with a few numbers that are drawn as they would be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from src.predict.draws import DRAWN, drawn_again


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

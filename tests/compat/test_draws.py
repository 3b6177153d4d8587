"""Large tensors are filled with a few numbers that are drawn as they would be."""

from __future__ import annotations

import torch
from torch import nn

from src.compat.draws import DRAWN, drawn_again


def test_large_tensors_have_the_same_numbers_again_and_small_ones_their_own() -> None:
    with drawn_again():
        torch.manual_seed(0)
        large, small = torch.empty(2, DRAWN + 5).uniform_(2, 3), torch.empty(7).normal_()
        layer = nn.Linear(512, 512)
        drawn_by_name = torch.empty(3 * DRAWN).normal_(mean=5.0, std=0.1)
    flat = large.view(-1)
    assert torch.equal(flat[:DRAWN], flat[DRAWN : 2 * DRAWN]) and torch.equal(flat[-10:], flat[:10])
    assert 2 <= flat.min() < flat.max() < 3 and len(flat[:DRAWN].unique()) > DRAWN // 2
    assert len(small.unique()) == 7
    assert layer.weight.requires_grad and layer.weight.std() > 0
    assert abs(drawn_by_name.mean() - 5) < 0.01 and abs(drawn_by_name.std() - 0.1) < 0.01
    # Afterwards each has its own again.
    assert len(torch.empty(2 * DRAWN).uniform_().unique()) > 1.5 * DRAWN

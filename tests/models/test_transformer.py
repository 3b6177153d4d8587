"""The parts of the transformers compute what the papers say, on numbers worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from src.models.torch.rotary import rotate, rotations
from src.models.torch.transformer import Attention, BlockConfig

BLOCK: dict[str, Any] = {"width": 16, "heads": 4, "hidden": 24, "activation": "gelu"}


def test_rotations_by_hand(in_float64: None) -> None:
    cosines, sines = rotations(3, 4)
    # Of 4 features the second pair turns by 10000**(-2/4) = 1/100 of the first one's angle.
    torch.testing.assert_close(cosines[2], torch.tensor([math.cos(2.0), math.cos(0.02)]), rtol=0, atol=1e-15)
    values = torch.tensor([[1.0, 0.0, 3.0, 4.0]]).expand(3, 4)
    turned = rotate(values, cosines, sines)
    assert turned[0].tolist() == [1, 0, 3, 4]
    # cos 1, sin 1, 3 cos 0.01 - 4 sin 0.01, 4 cos 0.01 + 3 sin 0.01.
    assert turned[1].tolist() == pytest.approx([0.5403023059, 0.8414709848, 2.9598506679, 4.0297995017])


def test_products_of_rotated_features_depend_on_the_distance_alone(in_float64: None) -> None:
    tables = rotations(9, 8)
    query, key = torch.randn(2, 8)
    queries, keys = (rotate(each.expand(9, 8), *tables) for each in (query, key))
    products = queries @ keys.T
    for distance in range(-8, 9):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-13)


def test_the_norm_divides_by_the_root_of_the_mean_square() -> None:
    norm = BlockConfig(**{**BLOCK, "width": 4}, kv_heads=4, causal=True, bias=False).norm()
    # The mean of 1, 1, 49 and 49 is 25.
    norm.weight.data[2] = 3.0
    assert norm(torch.tensor([1.0, -1.0, 7.0, -7.0])).tolist() == pytest.approx([0.2, -0.2, 4.2, -1.4])


def test_grouped_heads_are_heads_that_repeat(in_float64: None) -> None:
    grouped = Attention(BlockConfig(**BLOCK, kv_heads=2, causal=True, bias=True))
    whole = Attention(BlockConfig(**BLOCK, kv_heads=4, causal=True, bias=True))
    state = grouped.state_dict()
    for name in ("wk", "wv"):
        for kind in ("weight", "bias"):
            # Queries 0 and 1 read the first head of 4 features, 2 and 3 the second one.
            heads = state[f"{name}.{kind}"].unflatten(0, (2, 4))
            state[f"{name}.{kind}"] = heads.repeat_interleave(2, dim=0).flatten(0, 1)
    whole.load_state_dict(state)
    features, tables = torch.randn(3, 7, 16), rotations(7, 4)
    torch.testing.assert_close(grouped(features, tables), whole(features, tables), rtol=1e-12, atol=1e-14)


def test_a_part_of_the_heads_is_a_part_of_the_sum(in_float64: None) -> None:
    """As tensor parallelism divides it: columns of `wq`, `wk`, `wv` and rows of `wo`."""
    whole = Attention(BlockConfig(**BLOCK, kv_heads=2, causal=True, bias=False))
    features, tables = torch.randn(3, 7, 16), rotations(7, 4)
    expected, summed = whole(features, tables), torch.zeros(3, 7, 16)
    weights = {name: getattr(whole, name).weight.data for name in ("wq", "wk", "wv", "wo")}
    for rank in range(2):
        for name, weight in weights.items():
            getattr(whole, name).weight.data = weight.chunk(2, dim=int(name == "wo"))[rank]
        summed += whole(features, tables)
    torch.testing.assert_close(summed, expected, rtol=1e-12, atol=1e-14)

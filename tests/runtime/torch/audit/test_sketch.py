"""Sketches: exact of few values, linear, and near the norm of many."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from src.audit.records import norm
from src.runtime.torch.audit.sketch import PIECES, sketch


def test_of_few_values_a_sketch_is_they_themselves() -> None:
    np.testing.assert_array_equal(sketch(torch.tensor([[3.0, -4.0]]))[:3], [3.0, -4.0, 0.0])
    assert norm(sketch(torch.tensor([[3.0, -4.0]]))) == 5.0


def test_the_sketch_of_a_sum_is_the_sum_of_the_sketches() -> None:
    torch.manual_seed(0)
    parts = torch.randn(2, 1000, dtype=torch.float64)
    np.testing.assert_allclose(sketch(parts.sum(0)), sketch(parts[0]) + sketch(parts[1]), atol=1e-12)


def test_norms_of_differences_are_near_the_tensors() -> None:
    torch.manual_seed(0)
    found = [norm(sketch(each)) / float(each.norm()) for each in torch.randn(200, 5000)]
    # 64 pieces: the mean square is the tensor's, and one sketch's norm is within a third of it.
    assert np.mean(np.square(found)) == pytest.approx(1, abs=0.05)
    assert 0.6 < min(found) < max(found) < 1.4


def test_one_changed_value_of_many_is_seen_exactly() -> None:
    tensor = torch.linspace(0, 1, 100_000, dtype=torch.float64)
    other = tensor.clone()
    other[77_777] += 1e-9
    assert norm(sketch(other) - sketch(tensor)) == pytest.approx(1e-9, rel=1e-4)


def test_all_kinds_of_tensors_have_one_and_draw_nothing() -> None:
    before = torch.get_rng_state()
    for tensor in (
        torch.tensor(3),
        torch.zeros(0),
        torch.ones(300, dtype=torch.complex64),
        torch.eye(20).to_sparse(),
        torch.ones(200, dtype=torch.bfloat16),
    ):
        assert sketch(tensor).shape == (PIECES + 1,)
    assert torch.equal(before, torch.get_rng_state())


def test_unequal_whole_numbers_and_truth_values_have_unequal_sketches() -> None:
    one_hot = torch.eye(256, dtype=torch.bool)
    sketches = np.stack([sketch(row) for row in one_hot])
    # By signs alone two places of one piece are the same, or the opposite.
    assert len(np.unique(sketches[:, :-1], axis=0)) < 256
    assert len(np.unique(sketches, axis=0)) == 256
    for one, other in ((0, 1), (1, 2), (100, 101)):
        assert norm(sketches[one] - sketches[other]) > 0.0

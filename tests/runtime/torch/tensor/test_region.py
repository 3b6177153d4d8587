"""Between split layers each rank draws for itself; before and after all draw the same."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from src.runtime.torch.tensor.region import Region

CPU = torch.device("cpu")


def draws(rank: int) -> list[float]:
    """What a rank draws before, within, between and after two regions."""
    torch.manual_seed(3)
    region = Region(rank)
    region.draws, region.watches = True, False
    found = [float(torch.rand(()))]
    for _ in range(2):
        region.begin(CPU)
        # A second layer of the same split.
        region.begin(CPU)
        found.append(float(torch.rand(())))
        region.end()
    return [*found, float(torch.rand(()))]


def test_each_rank_draws_for_itself_within_a_region() -> None:
    first, second = draws(0), draws(1)
    assert first[0] == second[0] and first[-1] == second[-1]
    assert len({*first, *second}) == 6
    assert draws(1) == second


def test_a_watched_region_leaves_what_is_drawn_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    region = Region(1)
    region.begin(CPU)
    region.end()
    assert not region.draws
    found = [torch.rand(())]
    region.begin(CPU)
    found.append(torch.rand(()))
    region.end()
    assert region.draws
    assert torch.equal(torch.stack([*found, torch.rand(())]), expected)


def test_what_is_computed_again_draws_what_it_drew() -> None:
    """Layers that are computed again without the one in which the region ends leave nothing behind."""
    region = Region(1)
    region.draws, region.watches = True, False
    seen: list[Tensor] = []

    def first(values: Tensor) -> Tensor:
        region.begin(CPU)
        seen.append(torch.rand(4))
        return (values * seen[-1]).sin()

    torch.manual_seed(3)
    values = torch.ones(4, requires_grad=True)
    for _ in range(2):
        values = checkpoint(first, values, use_reentrant=False)
        region.end()
    values.sum().backward()
    one, other, other_again, one_again = seen
    assert torch.equal(one, one_again) and torch.equal(other, other_again)
    assert not torch.equal(one, other)
    # The next step draws as one does in which nothing was computed again.
    torch.manual_seed(3)
    first(values)
    assert torch.equal(seen[-1], one)

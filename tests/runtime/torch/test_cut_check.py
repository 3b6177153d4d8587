"""A cut that differs by rounding alone is no other model: what differs in fp32 is looked at in float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from src.config import ConfigError
from src.data.generated import synthetic
from src.partition.torch import comparison
from src.runtime.common.context import RankContext
from src.runtime.torch.pipeline.cut_check import SAMPLES, check_cut, few
from tests.support import config

IMAGES = {"shape": [8, 8, 1], "classes": 3, "samples": 32, "test_samples": 4, "source": "generated"}


class Magnified(nn.Module):
    """Subtracts two sums of the same numbers, in two orders, but for a ten-thousandth.

    What crosses a boundary is contiguous, by which torch adds up in another order.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.first, self.head = nn.Linear(64, 4096), nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        table = torch.exp(self.first(images.flatten(1))).view(-1, 64, 64)
        difference = table.transpose(1, 2).sum(2) - self.share * table.sum(1)
        return self.head(difference)


def context_in(folder: Path) -> RankContext:
    chosen = config("strategy=pipeline", "model=mlp", "batch=16", "microbatches=2")
    return RankContext(chosen, 0, 1, synthetic.make({**IMAGES, "generator_seed": 0}), folder, (0,))


def test_rounding_that_a_model_magnifies_is_no_other_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Magnified(0.9999)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    assert check_cut(context_in(tmp_path), model) == SAMPLES
    assert all(map(torch.equal, model.parameters(), weights))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    # In fp32 alone it would be refused, and so it is with a bound in float64 that rounding exceeds.
    monkeypatch.setattr(comparison, "SHARP", 1e-15)
    with pytest.raises(
        ConfigError,
        match=r"as it is: .* differs by .* of its norm; strategies that keep it whole are .*single",
    ):
        check_cut(context_in(tmp_path), model)


def test_a_stage_that_no_operation_begins_is_refused_before_a_rank_starts(tmp_path: Path) -> None:
    context = context_in(tmp_path)
    model = Magnified(0.5)
    for name, told in (("head", None), ("heads", r"partition=\[heads\]: no .*; did you mean head\?")):
        words = ("strategy=pipeline", "model=mlp", "batch=16", "microbatches=2", "workers=2")
        chosen = config(*words, f"strategy.partition=[{name}]")
        named = dataclasses.replace(context, config=chosen)
        if told is None:
            assert check_cut(named, model) == SAMPLES
            continue
        with pytest.raises(ConfigError, match=told):
            check_cut(named, model)


def test_a_refusal_names_what_would_cut_between_layers_that_share_a_weight(tmp_path: Path) -> None:
    pair = nn.Linear(64, 64), nn.Linear(64, 64)
    pair[1].weight = pair[0].weight
    words = ("strategy=hybrid", "strategy.pipeline=4", "model=mlp", "batch=16", "microbatches=2")
    context = dataclasses.replace(context_in(tmp_path), config=config(*words))
    told = r"^strategy\.pipeline=4: .* at most 3 stages, .*=3, or strategy\.tied=reduce, for layers share a"
    with pytest.raises(ConfigError, match=told):
        check_cut(context, nn.Sequential(nn.Flatten(), *pair, nn.Linear(64, 10)))


def test_few_samples_of_large_pictures_are_compared() -> None:
    assert few((torch.empty(16, 1, 28, 28),)) == SAMPLES
    assert few((torch.empty(16, 3, 224, 224),)) == 2
    assert few((torch.empty(16, 3, 128, 128), torch.empty(16, 1))) == 5
    assert few((torch.empty(1, 3, 224, 224),)) == 1

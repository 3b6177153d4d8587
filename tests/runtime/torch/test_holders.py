"""A module whose ranks hold parts of the model: its checkpoint, and the facts of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from src.data.generated import synthetic
from src.runtime.common.context import RankContext
from src.runtime.torch.checkpoint import RankState
from src.runtime.torch.lightning.module import TrainingModule
from tests.support import config

ARRAYS = synthetic.make(
    {
        "shape": [8, 8, 1],
        "classes": 10,
        "samples": 64,
        "test_samples": 40,
        "source": "generated",
        "generator_seed": 0,
    }
)
RANKS = 4


class HalfModule(TrainingModule):
    """Half of a model that ranks 0 and 1 hold, of which ranks 2 and 3 hold a copy."""

    prefix = "part."
    holders = range(2)


def half(rank: int) -> HalfModule:
    context = RankContext(config("strategy=ddp"), rank, RANKS, ARRAYS, Path(), (0,))
    model = nn.ModuleDict({"part": nn.ModuleDict({f"layer{rank % 2}": nn.Linear(2, 2)})})
    nn.init.constant_(model["part"][f"layer{rank % 2}"].weight, rank)  # type: ignore[index]
    return HalfModule(context, model)


def test_rank_0_gathers_each_part_once_from_the_ranks_that_hold_the_first_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[RankState | None] = []

    def gather(state: RankState | None, gathered: list[RankState | None] | None, _: int) -> None:
        """As torch's, of ranks that come one after the other, the last one first."""
        sent.insert(0, state)
        if gathered is not None:
            gathered[:] = sent

    monkeypatch.setattr(dist, "gather_object", gather)
    modules = [half(rank) for rank in reversed(range(RANKS))]
    *others, parts = [m.rank_states(torch.optim.SGD(m.parameters(), lr=0.1)) for m in modules]
    assert others == [None, None, None] and parts is not None
    assert [sorted(part["model"]) for part in parts] == [
        [f"layer{rank}.bias", f"layer{rank}.weight"] for rank in (0, 1)
    ]
    assert [float(part["model"][f"layer{rank}.weight"].mean()) for rank, part in enumerate(parts)] == [0, 1]


def test_a_parts_facts_are_those_of_the_whole_from_before_it_was_divided() -> None:
    module = half(0)
    module.whole_facts = {"parameters": 12, "flops_per_sample": 48.0}
    facts = module.facts(torch.device("cpu"))
    assert (facts["parameters"], facts["flops_per_sample"]) == (12, 48.0)

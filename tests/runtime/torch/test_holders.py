"""A module whose ranks hold parts of the model: its checkpoint, and the facts of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from src.data.generated import synthetic
from src.runtime.common.context import RankContext
from src.runtime.torch import checkpoint
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
    (whole,) = parts
    assert sorted(whole["model"]) == [f"layer{n}.{kind}" for n in (0, 1) for kind in ("bias", "weight")]
    assert [float(whole["model"][f"layer{rank}.weight"].mean()) for rank in (0, 1)] == [0, 1]


def test_a_checkpoint_has_the_whole_models_names() -> None:
    """A stage knows a tied tensor by one name, and no stage has a layer that isn't used."""
    model = nn.ModuleDict({"up": nn.Linear(2, 2), "down": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    model["down"].weight = model["up"].weight
    tied = checkpoint.tied_names(model)
    assert tied == [["up.weight", "down.weight"]]
    trained = torch.ones(2, 2)
    first: RankState = {
        "model": {"down.weight": trained},
        "state": {"down.weight": {"momentum_buffer": trained}},
    }
    second: RankState = {"model": {"up.bias": trained[0]}, "state": {}}
    state = model.state_dict()
    unstaged = {name: state[name] for name in ("down.bias", "up.weight", "unused.weight", "unused.bias")}
    whole = checkpoint.complete([first, second], tied, unstaged)
    assert whole["model"].keys() == state.keys()
    assert whole["model"]["up.weight"] is whole["model"]["down.weight"] is trained
    assert whole["state"]["up.weight"]["momentum_buffer"] is trained


def test_tied_weights_find_their_optimizer_state_by_either_name() -> None:
    model = nn.ModuleDict({"up": nn.Linear(2, 2, bias=False), "down": nn.Linear(2, 2, bias=False)})
    model["down"].weight = model["up"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    buffer = torch.full((2, 2), 3.0)
    values = {name: torch.ones(2, 2) for name in ("up.weight", "down.weight")}
    for name in values:
        saved = {"model": values, "optimizer": {"state": {name: {"momentum_buffer": buffer}}}}
        optimizer.state.clear()
        checkpoint.restore(saved, model, optimizer)
        assert torch.equal(optimizer.state[model["up"].weight]["momentum_buffer"], buffer)


def test_a_parts_facts_are_those_of_the_whole_from_before_it_was_divided() -> None:
    module = half(0)
    module.whole_facts = {"parameters": 12, "flops_per_sample": 48.0}
    facts = module.facts(torch.device("cpu"))
    assert (facts["parameters"], facts["flops_per_sample"]) == (12, 48.0)

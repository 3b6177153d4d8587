"""A model that has its layers in odd ways trains alike once it is sharded, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from src.config import ConfigError
from src.data.generated import synthetic
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.sharding import groups
from src.runtime.torch.sharding.model_shards import find_groups, shard
from src.runtime.torch.sharding.shard_check import check_sharding
from tests.plugin.model import shardable
from tests.support import config

IMAGES = {"shape": [8, 8, 1], "classes": 3, "samples": 32, "test_samples": 4, "source": "generated"}
CPU = torch.device("cpu")


def context_in(folder: Path, model: type[nn.Module], *words: str) -> RankContext:
    path = f"model.path={model.__module__}.{model.__name__}"
    chosen = config("strategy=fsdp", "model=custom", path, "batch=16", "strategy.group_mb=0.001", *words)
    return RankContext(chosen, 0, 1, synthetic.make({**IMAGES, "generator_seed": 0}), folder, (0,))


@pytest.mark.parametrize(
    ("model", "apart"),
    [
        (shardable.Plain, {"first", "second", "head"}),
        # What can't be gathered by itself is gathered for the whole step.
        (shardable.WeightRead, {"first", "head"}),
        (shardable.CalledTwice, {"first", "head"}),
        (shardable.OtherMethod, {"first", "second.second", "head"}),
        (shardable.HiddenOutput, {"first", "head"}),
        (shardable.OnlyInTraining, {"first", "head"}),
        (shardable.Recurrent, {"first", "second", "head"}),
        (shardable.Scalar, {"first", "second", "head"}),
        (shardable.Tied, {"first", "head"}),
    ],
)
@pytest.mark.parametrize("reshard", ["true", "false"])
def test_what_is_gathered_by_itself_is_what_is_used_so(
    tmp_path: Path, model: type[nn.Module], apart: set[str], reshard: str
) -> None:
    context = context_in(tmp_path, model, f"strategy.reshard={reshard}")
    built = setup.build(context)
    found = find_groups(context, built, CPU)
    assert {name for group in found for name in group.modules} == apart
    check_sharding(context, built)


def test_a_weight_that_is_held_elsewhere_too_is_refused(tmp_path: Path) -> None:
    context = context_in(tmp_path, shardable.Listed)
    with pytest.raises(ConfigError, match=r"^strategy=fsdp: sharded, the model trains"):
        check_sharding(context, setup.build(context))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("[secnd]", "the model has no module secnd; did you mean second?"),
        ("[second,second.weight]", "the model has no module second.weight; did you mean second?"),
        ("[second,second]", "second lies within second; name one of them"),
        ("[1,2]", "must name modules, as [layer1,layer2]"),
    ],
)
def test_groups_that_are_not_the_model_s_are_refused(tmp_path: Path, named: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        context = context_in(tmp_path, shardable.Plain, f"strategy.groups={named}")
        find_groups(context, setup.build(context), CPU)
    assert said in str(caught.value)


def test_a_module_that_can_not_be_a_group_is_refused(tmp_path: Path) -> None:
    context = context_in(tmp_path, shardable.CalledTwice, "strategy.groups=[second]")
    with pytest.raises(ConfigError, match="second can't be gathered by itself: it isn't called exactly once"):
        find_groups(context, setup.build(context), CPU)


def test_a_stage_without_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="a stage without parameters can't be sharded"):
        shard(nn.ReLU(), [], cast(DeviceMesh, None), reshard=False)


def test_groups_have_as_few_bytes_as_so_many_can_have() -> None:
    # 4, 4, 8, 2, 2 and 4 KiB: of about 8 KiB each (4, 4), (8) and (2, 2, 4), no larger.
    sizes = [32, 32, 64, 16, 16, 32]
    layers = nn.Sequential(*(nn.Linear(32, size, bias=False) for size in sizes))
    alone = {str(place) for place in range(len(sizes))}
    found = groups.equal(layers, alone, 8 * 1024)
    assert found == [
        groups.Group(("0", "1"), 8192),
        groups.Group(("2",), 8192),
        groups.Group(("3", "4", "5"), 8192),
    ]
    assert groups.equal(layers, set(), 8 * 1024) == []
    # By default 1 MiB at least.
    assert [each.modules for each in groups.equal(layers, alone)] == [tuple(sorted(alone))]

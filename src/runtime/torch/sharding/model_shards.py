"""Shard a model's parameters over a mesh, and look at a step of it; Lightning isn't imported here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from src.config import ConfigError
from src.config.run_config import MESH, StrategyOptions
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import dry_run, setup
from src.runtime.torch.dry_run import Look
from src.runtime.torch.kernel_counter import KernelCounter
from src.runtime.torch.lightning import sync_batchnorm
from src.runtime.torch.sharding import groups
from src.runtime.torch.sharding.collectives import CountedAllGather, CountedReduceScatter
from src.runtime.torch.sharding.gradients import ShardedGradients
from src.runtime.torch.sharding.uses import gatherable
from src.runtime.torch.tensors import input_tensors
from src.tasks.torch.task import Task


@dataclass(frozen=True, kw_only=True)
class ShardOptions(StrategyOptions):
    """The options of a strategy that shards parameters."""

    reshard: bool
    groups: str | Sequence[str]
    group_mb: float | None


def shard(
    model: nn.Module, found: Sequence[groups.Group], mesh: DeviceMesh, *, reshard: bool
) -> list[nn.Parameter]:
    """Shard a model's parameters over a mesh, in place; return those that every rank keeps whole.

    These have no dimension or no element, or another type than most. Parameters become contiguous.

    Args:
        model: the whole model, of which all ranks have the same values.
        found: the groups that are gathered apart.
        mesh: the ranks.
        reshard: whether a group is freed after its forward pass, and gathered again for its backward pass.

    Raises:
        ConfigError: where there is nothing to shard, as in a stage without parameters.
    """
    parameters = list(model.parameters())
    if not parameters:
        raise ConfigError("a stage without parameters can't be sharded; choose another strategy.partition")
    bytes_of: dict[torch.dtype, int] = {}
    for parameter in parameters:
        bytes_of[parameter.dtype] = bytes_of.get(parameter.dtype, 0) + parameter.nbytes
    most = max(bytes_of, key=lambda each: bytes_of[each])
    kept = [each for each in parameters if not each.dim() or not each.numel() or each.dtype != most]
    for parameter in parameters:
        if not parameter.is_contiguous():
            parameter.data = parameter.data.contiguous()
    modules = dict(model.named_modules())
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": reshard, "ignored_params": set(kept)}
    for group in found:
        members = [modules[name] for name in group.modules]
        fully_shard(members if len(members) > 1 else members[0], **options)
    fully_shard(model, **options)
    return kept


def count_exchanges(model: nn.Module, recorder: Recorder) -> None:
    """Have a sharded model's exchanges counted by `recorder`."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(CountedAllGather(recorder))
            scatter = CountedReduceScatter(recorder)
            module.set_custom_reduce_scatter(scatter)
            if recorder.config.degrees.data > 1:
                module.set_all_reduce_hook(scatter.count_average)
            # gloo has no average.
            module.set_force_sum_reduction_for_comms(dist.get_backend() == "gloo")


def keep_shards(
    context: RankContext,
    model: nn.Module,
    found: Sequence[groups.Group],
    mesh: DeviceMesh,
    recorder: Recorder,
) -> ShardedGradients:
    """Keep this rank's shards of a whole model, in place; return what exchanges further gradients."""
    copies = ("data", "shard") if context.config.supports.axis == MESH else ("shard",)
    kept = shard(model, found, mesh[copies], reshard=ShardOptions.of(context.config).reshard)
    count_exchanges(model, recorder)
    return ShardedGradients(model, kept, mesh, recorder)


def look(
    context: RankContext,
    task: Task,
    device: torch.device,
    found: Sequence[groups.Group],
    mesh: DeviceMesh,
    recorder: Recorder,
    *,
    foreach: bool | None = None,
) -> Look:
    """Look at a step of a sharded model, by a dry run.

    Args:
        context: the rank's context.
        task: the configured task.
        device: where the rank computes.
        found: the groups that are gathered apart.
        mesh: of the run.
        recorder: the rank's.
        foreach: as of `dry_run.look`.
    """

    def divide(model: nn.Module, _: KernelCounter) -> tuple[nn.Module, Callable[[], None]]:
        if context.config.batchnorm == "sync":
            model = sync_batchnorm.convert(model)
        gradients = keep_shards(context, model, found, mesh, recorder)
        return model, functools.partial(settle, context, gradients)

    return dry_run.look(context, task, device, divide, foreach=foreach, waits=False)


def settle(context: RankContext, gradients: ShardedGradients) -> None:
    """Average the gradients of what all ranks keep whole, and clip the whole model's if configured."""
    gradients.average_kept()
    if (limit := context.config.optimizer["clip_norm"]) is not None:
        gradients.clip(limit)


def reached_always(context: RankContext, model: nn.Module, device: torch.device) -> set[str]:
    """Return the names of the parameters that get gradients.

    Raises:
        ConfigError: when not always the same do.
    """
    reached, always = setup.reached_parameters(context, model, device)
    if not always:
        raise ConfigError(
            f"strategy={context.config.strategy['name']}: not all steps use the same parameters of this "
            "model, and ranks that gather others wait forever; choose ddp"
        )
    return reached


def find_groups(context: RankContext, model: nn.Module, device: torch.device) -> list[groups.Group]:
    """Return the groups in which a whole model on `device` is gathered, by a look at the first samples.

    Raises:
        ConfigError: when the configured groups aren't the model's.
    """
    inputs = input_tensors(context, context.arrays.train.read(slice(2)).inputs, device)
    alone = gatherable(model, lambda: model(*inputs), device, precision=context.config.precision)
    options = ShardOptions.of(context.config)
    if not isinstance(options.groups, str):
        return groups.named(model, alone, options.groups)
    least = None if options.group_mb is None else options.group_mb * 2**20
    return groups.equal(model, alone, least)

"""Train a model whose ranks hold shards of it under Lightning."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from src.compat.torch import gathered_parameters
from src.config import ConfigError
from src.config.run_config import MESH, StrategyOptions
from src.measure.live_step import LiveBytes
from src.measure.recorder import Recorder
from src.models.torch.unchanged import evaluating
from src.runtime.common.context import RankContext
from src.runtime.torch import checkpoint, dry_run, freed_memory, scoring, setup
from src.runtime.torch.checkpoint import RankState
from src.runtime.torch.dry_run import Look
from src.runtime.torch.feed import Batch
from src.runtime.torch.kernel_counter import KernelCounter
from src.runtime.torch.lightning import sync_batchnorm
from src.runtime.torch.lightning.module import TrainingModule
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
        return model, functools.partial(_settle, context, gradients)

    return dry_run.look(context, task, device, divide, foreach=foreach, waits=False)


def _settle(context: RankContext, gradients: ShardedGradients) -> None:
    """Average the gradients of what all ranks keep whole, and clip the whole model's if configured."""
    gradients.average_kept()
    if (limit := context.config.optimizer["clip_norm"]) is not None:
        gradients.clip(limit)


class ShardedModule(TrainingModule):
    """A model under Lightning, of whose parameters, gradients and optimizer state each rank has a shard."""

    def __init__(
        self,
        context: RankContext,
        recorder: Recorder,
        mesh: DeviceMesh,
        device: torch.device,
    ) -> None:
        """Build the whole model on `device`, look at it, and keep this rank's shards.

        Args:
            context: the rank's context.
            recorder: the rank's recorder.
            mesh: of the run.
            device: the rank's device.

        Raises:
            ConfigError: when data decide which parameters are used, or the groups aren't the model's.
        """
        options = ShardOptions.of(context.config)
        model = setup.build(context).to(device)
        self._reached = reached_always(context, model, device)
        whole_facts = setup.facts(context, model, device, spares_memory=True)
        self._groups = find_groups(context, model, device)
        recorder.note(groups.show(self._groups, sum(parameter.nbytes for parameter in model.parameters())))
        if context.config.batchnorm == "sync":
            model = sync_batchnorm.convert(model)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        super().__init__(context, model)
        self.whole_facts = whole_facts
        self._reshard, self._mesh, self._recorder = options.reshard, mesh, recorder
        self._gradients = self._shard(model)
        setup.release()
        self._returned_bytes = freed_memory.block_of_a_step(model)
        freed_memory.return_blocks(self._returned_bytes)

    def _shard(self, model: nn.Module) -> ShardedGradients:
        return keep_shards(self.context, model, self._groups, self._mesh, self._recorder)

    @property
    def _sharded(self) -> FSDPModule:
        assert isinstance(self.model, FSDPModule)
        return self.model

    def held_tensors(self) -> Mapping[str, Sequence[Tensor]]:
        """Return what parameters are gathered into."""
        return {"exchange": gathered_parameters(self.model)}

    def predicted_memory(self, strategy: Strategy, device: torch.device) -> LiveBytes:
        """Predict the live tensors of a step on `device`, by a dry run."""
        return look(self.context, self.task, device, self._groups, self._mesh, self._recorder).live

    def training_step(self, batch: Batch, index: int) -> Tensor | None:
        """Return the weighted loss of one micro-batch; gradients are exchanged after a step's last one."""
        parts = self.context.config.microbatches
        if parts > 1:
            self._sharded.set_requires_gradient_sync((index + 1) % parts == 0)
        return super().training_step(batch, index)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Average the gradients of what all ranks keep whole, and clip the whole model's if configured."""
        self._check_gradients()
        _settle(self.context, self._gradients)

    def _check_gradients(self) -> None:
        """Raise `ConfigError`, in the first step, if a parameter has lost its gradient by sharding."""
        if self._reached is None:
            return
        without = [
            name
            for name, parameter in self.model.named_parameters()
            if name in self._reached and parameter.grad is None
        ]
        if without:
            raise ConfigError(
                f"strategy={self.context.config.strategy['name']}: {without[0]} gets no gradient once it is "
                "sharded: the model holds it in another place, too, than as a module's parameter; choose ddp"
            )
        self._reached = None

    def evaluate(self, device: torch.device) -> Tensor:
        """Score this rank's part of the test set; return the sums as `scoring.test_sums` does.

        All ranks make as many forward passes, for each gathers parameters; a pass too many isn't counted.
        """
        config, samples = self.context.config, self.context.arrays.test_samples
        parts = [self.split.part(rank, samples) for rank in range(self.context.world_size)]
        passes = [math.ceil((part.stop - part.start) / config.evaluation_batch) for part in parts]
        # What has been gathered is freed after each pass, so that the next step gathers what it trains on.
        self._sharded.set_reshard_after_forward(True)
        found = scoring.score(self.context, self.task, self.model, parts[self.context.rank], device)
        example = input_tensors(self.context, self.context.arrays.test.read(slice(1)).inputs, device)
        with evaluating(self.model):
            for _ in range(max(passes) - passes[self.context.rank]):
                self.model(*example)
        self._sharded.set_reshard_after_forward(self._reshard)
        # Passes without a backward one are else part of the order in which the next one gathers ahead; torch
        # 2.11 can't forget them.
        if hasattr(self._sharded, "reset_iter_state"):
            self._sharded.reset_iter_state()
        return found

    def rank_states(self, optimizer: torch.optim.Optimizer) -> list[RankState] | None:
        """Gather the whole model's tensors on rank 0, one at a time; return `None` on others."""
        first = self.context.rank == 0
        with freed_memory.all_returned(self._returned_bytes):
            state = checkpoint.gathered_state(self.model, optimizer, self.context.folder, keeps=first)
        return [checkpoint.complete([state], self.tied, self.unstaged)] if first else None


def reached_always(context: RankContext, model: nn.Module, device: torch.device) -> set[str] | None:
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

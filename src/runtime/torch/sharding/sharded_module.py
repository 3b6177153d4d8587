"""Train a model whose ranks hold shards of it under Lightning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from src.compat.torch import gathered_parameters
from src.config import ConfigError
from src.measure.live_step import LiveBytes
from src.measure.recorder import Recorder
from src.models.torch.unchanged import evaluating
from src.runtime.common.context import RankContext
from src.runtime.torch import checkpoint, freed_memory, scoring, setup
from src.runtime.torch.checkpoint import RankState
from src.runtime.torch.feed import Batch
from src.runtime.torch.lightning import sync_batchnorm
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.sharding import groups, model_shards
from src.runtime.torch.sharding.gradients import ShardedGradients
from src.runtime.torch.sharding.model_shards import ShardOptions
from src.runtime.torch.tensors import input_tensors


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
        self._reached = model_shards.reached_always(context, model, device)
        # Whether each parameter is to have a gradient, and its name, once it is sharded.
        self._checked = list[tuple[bool, str, nn.Parameter]]()
        whole_facts = setup.facts(context, model, device, spares_memory=True)
        self._groups = model_shards.find_groups(context, model, device)
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
        return model_shards.keep_shards(self.context, model, self._groups, self._mesh, self._recorder)

    @property
    def _sharded(self) -> FSDPModule:
        assert isinstance(self.model, FSDPModule)
        return self.model

    def held_tensors(self) -> Mapping[str, Sequence[Tensor]]:
        """Return what parameters are gathered into."""
        return {"exchange": gathered_parameters(self.model)}

    def predicted_memory(self, strategy: Strategy, device: torch.device) -> LiveBytes:
        """Predict the live tensors of a step on `device`, by a dry run."""
        return model_shards.look(
            self.context, self.task, device, self._groups, self._mesh, self._recorder
        ).live

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
        model_shards.settle(self.context, self._gradients)

    def _check_gradients(self) -> None:
        """Raise `ConfigError` where other parameters have gradients than when the model was looked at.

        Ranks that don't use the same would sum what doesn't go together.
        """
        first = not self._checked
        if first:
            self._checked = [
                (name in self._reached, name, each) for name, each in self.model.named_parameters()
            ]
        differing = next((each for each in self._checked if each[0] == (each[2].grad is None)), None)
        if differing is None:
            return
        expected, name, _ = differing
        strategy = f"strategy={self.context.config.strategy['name']}"
        if first and expected:
            raise ConfigError(
                f"{strategy}: {name} gets no gradient once it is sharded: the model holds it in another "
                "place, too, than as a module's parameter; choose ddp"
            )
        raise ConfigError(
            f"{strategy}: {name} gets {'no' if expected else 'a'} gradient in this step, unlike in others, "
            "and ranks that use other parameters wait for each other; choose ddp"
        )

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

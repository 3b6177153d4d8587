"""Define the Lightning module of a rank's model: its training step, its loss, and its evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import SingleDeviceStrategy, Strategy
from torch import Tensor, nn

from src.measure.live_step import LiveBytes
from src.measure.rank_record import RankRecord
from src.measure.recorder import Recorder
from src.runtime.common.batch_split import BatchSplit
from src.runtime.common.context import RankContext
from src.runtime.torch import (
    checkpoint,
    compilation,
    peak,
    predicted_memory,
    scoring,
    setup,
    shards,
    update_rule,
)
from src.runtime.torch.checkpoint import RankState
from src.runtime.torch.feed import Batch, Feed
from src.runtime.torch.predicted_memory import CopyMemory
from src.runtime.torch.tensors import Tensors


class TrainingModule(pl.LightningModule):
    """A model under Lightning, trained by the task's loss.

    A strategy whose ranks hold parts of the model says so by `prefix`, `holders` and `whole_facts`, and
    overrides the methods that differ for a part.

    Attributes:
        model: the model, or this rank's part of it.
        task: the configured task.
        sums: what `scoring.training_sums` gives, of all samples since the last evaluation, float64.
        step_loss: what the present step's samples so far add to the global batch's summed loss [].
        step_samples: number of the present step's samples so far.
        split: how batches are split among ranks.
        pieces: number of micro-batches of all ranks in a global batch.
        prefix: what this rank's parameter names have before those in the whole model.
        holders: the ranks that together hold the whole model; all others hold copies of their parts.
        whole_facts: the facts of the whole model from before it was divided; `None` where `model` is that.
        tied: names in the whole model of tensors that have several, a list for each tensor.
        unstaged: tensors of the whole model that no rank needs to train, by name; checkpoints have them.
        lag: by how many steps ranks may be apart.
        staleness: updates between the weights that the present step's gradient is of, and its own; `None`
            where there are none.
    """

    prefix = ""
    lag = 1
    staleness: float | None = None
    holders: Sequence[int] = range(1)
    whole_facts: RankRecord | None = None

    def __init__(self, context: RankContext, model: nn.Module) -> None:
        super().__init__()
        self.context = context
        self.model = model
        self.task = setup.make_task(context)
        self.sums = scoring.empty(self.task)
        self.step_loss, self.step_samples = torch.zeros(()), 0
        self.split = BatchSplit(context.config)
        self.pieces = context.config.microbatches * context.config.data_parallel_degree
        self.tied, self.unstaged = checkpoint.tied_names(model), dict[str, Tensor]()
        compilation.compile_model(context, model)

    @property
    def scores_training(self) -> bool:
        """Return whether the task scores training samples."""
        return self.task.scores_training

    def feed(self, recorder: Recorder, device: torch.device) -> Feed:
        """Make the feed of this rank's micro-batches."""
        parts = self.context.config.microbatches
        return Feed(self.context, recorder, device, self.task, parts=parts, split=self.split)

    def warm_up(self, feed: Feed) -> None:
        """Compile the step for the micro-batches that `feed` feeds, if that is configured."""
        if compilation.is_configured(self.context):
            inputs = next(iter(feed)).inputs
            assert inputs is not None
            compilation.warm_up(self.context, self.model, inputs)

    def on_start(self, trainer: pl.Trainer) -> None:
        """Begin to train under `trainer`, whose optimizers are made."""

    def take_logged(self, stage: str) -> dict[str, float | None]:
        """Return what the model itself has logged since the last evaluation, of all ranks, by name."""
        return {}

    def training_step(self, batch: Batch, _: int) -> Tensor | None:
        """Return the weighted loss of one micro-batch, as `loss` does, and count its samples."""
        assert batch.inputs is not None and batch.targets is not None
        return self.loss(self.task.outputs(self.model(*batch.inputs)), batch.targets, batch.divisor)

    def loss(self, outputs: Tensors, targets: Tensors, divisor: float) -> Tensor:
        """Return the weighted loss [] of one micro-batch, and add it to the sums.

        The weight is such that the mean over all ranks' micro-batches is the mean over the global batch,
        whatever the micro-batches' sizes, and however many targets each of them has.

        Args:
            outputs: the model's outputs [samples, ...].
            targets: [samples, ...].
            divisor: what the loss of the global batch is a mean over.
        """
        weight = self.context.config.global_batch / divisor
        loss, sums = scoring.training_sums(self.task, outputs, targets, weight)
        self.step_loss = self.step_loss + sums[0]
        self.step_samples += len(targets[0])
        # They begin on the CPU; the first micro-batch's device is where they stay.
        self.sums = self.sums.to(loss.device) + sums
        return loss * (self.pieces / divisor)

    def drain(self) -> None:
        """Complete all steps that are begun; all ranks call this method after the same step."""

    def take_loss(self) -> SupportsFloat:
        """Return this rank's loss of the completed step, and begin the next step's sum.

        It is the mean over the rank's samples; where the loss is a mean over targets, the rank's contribution
        to that mean, over its share of the global batch.
        """
        loss = self.step_loss / max(1, self.step_samples)
        self.step_loss, self.step_samples = torch.zeros((), device=loss.device), 0
        return loss

    def take_sums(self) -> Tensor:
        """Return `sums`, and begin them anew."""
        sums, self.sums = self.sums, torch.zeros_like(self.sums)
        return sums

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the configured optimizer of this rank's parameters."""
        # A stage's operations may have no parameters, and torch's optimizers need at least one.
        parameters: list[Tensor] = [*self.parameters()] or [torch.zeros(0, requires_grad=True)]
        return update_rule.make_optimizer(self.context.config.optimizer, shards.apart(parameters))

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradient if configured: the averaged one, or a rank's own where ranks train alone.

        Lightning calls this method between the backward pass and the optimizer's step; its arguments are
        those of the `Trainer`, which are not used here.
        """
        if (limit := self.context.config.optimizer["clip_norm"]) is not None:
            update_rule.clip(self.parameters(), limit)

    def evaluate(self, device: torch.device) -> Tensor:
        """Score this rank's part of the test set; return the sums as `scoring.test_sums` does."""
        number = self.context.config.degrees.batch_part(self.context.rank)
        part = self.split.part(number, self.context.arrays.test_samples)
        return scoring.score(self.context, self.task, self.model, part, device)

    def rank_states(self, optimizer: torch.optim.Optimizer) -> list[RankState] | None:
        """Gather the whole model's tensors on rank 0; return `None` on others. All ranks call this method."""
        holds = self.context.rank in self.holders
        state = checkpoint.rank_state(self.model, optimizer, self.prefix) if holds else None
        return self.joined_states(state)

    def joined_states(self, state: RankState | None) -> list[RankState] | None:
        """Gather the holders' tensors on rank 0, and join them; return `None` on others.

        `state` has those of this rank, if it is a holder.
        """
        rank = self.context.rank
        gathered: list[Any] = [state] * self.context.world_size
        if len(self.holders) > 1:
            dist.gather_object(state, gathered if rank == 0 else None, 0)
        parts = [gathered[holder] for holder in self.holders]
        return [checkpoint.complete(parts, self.tied, self.unstaged)] if rank == 0 else None

    def restore(self, resumed: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
        """Restore the tensors of this rank's part of the model, and of its optimizer, from a checkpoint."""
        checkpoint.restore(resumed, self.model, optimizer, self.prefix)
        self.unstaged = {name: resumed["model"][name] for name in self.unstaged}

    def held_tensors(self) -> Mapping[str, Sequence[Tensor]]:
        """Return what the rank holds between steps besides its model and its optimizer's state.

        They are by the part of memory that they count to (`src.measure.live_bytes`).
        """
        return {}

    def predicted_memory(self, strategy: Strategy, device: torch.device) -> LiveBytes | None:
        """Predict the live tensors of a step on `device`, `None` where that can't be done.

        `strategy` is Lightning's, under which the module is trained.
        """
        alone = isinstance(strategy, SingleDeviceStrategy)
        memory = CopyMemory() if alone else getattr(strategy, "memory", None)
        if memory is None:
            return None
        return predicted_memory.of_copy(self.context, self.model, self.task, device, memory)

    def facts(self, device: torch.device) -> RankRecord:
        """Return the facts of the whole model for the record, its costs measured on `device`.

        Every rank calls this method after training, since a synchronised BatchNorm waits for the other ranks.
        """
        whole = self.whole_facts or setup.facts(self.context, self.model, device)
        return whole | peak.facts(self.context, device)


def trained_model(module: pl.LightningModule) -> nn.Module:
    """Return the model that Lightning trains by a module: its own, or that module itself."""
    return module.model if isinstance(module, TrainingModule) else module

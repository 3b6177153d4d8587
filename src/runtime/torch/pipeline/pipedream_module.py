"""Train a stage by PipeDream: it begins the next micro-batches while gradients of earlier ones are under way.

    rank 0 | F0 F1 B0 F2 B1 F3 B2 ..     Each backward pass has the weights of its forward pass; after
    rank 1 | .. F0 B0 F1 B1 F2 B2 ..     those of a step the stage updates its own, and waits for nobody.

Nothing is under way where all ranks evaluate, save or end: they drain the pipeline before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import Strategy
from torch import Tensor

from src.data import order
from src.measure.live_step import LiveBytes
from src.measure.recorder import Recorder
from src.partition.saved_tensors import SavedTensors, most_bytes_when_full
from src.partition.schedules.pipedream import WeightRule
from src.partition.torch.stage import Stage
from src.runtime.common.context import RankContext
from src.runtime.torch import predicted_memory
from src.runtime.torch.feed import Batch
from src.runtime.torch.pipeline.asynchronous_stage import AsynchronousStage
from src.runtime.torch.pipeline.stage_module import StageModule
from src.runtime.torch.pipeline.weight_versions import WeightVersions
from src.runtime.torch.tensors import Tensors
from src.tasks.torch.outputs import model_outputs


class PipeDreamModule(StageModule):
    """A rank's stage, which trains by `WeightRule`.

    Attributes:
        versions: of the stage's weights.
    """

    def __init__(
        self, context: RankContext, recorder: Recorder, *, device: torch.device, **options: Any
    ) -> None:
        """Build, trace and cut the whole model, and keep this rank's stage on `device`.

        The arguments are those of `StageModule`.

        Raises:
            ConfigError: when the model can't be cut as the configuration asks.
        """
        super().__init__(context, recorder, device=device, **options)
        strategy, config = context.config.strategy, context.config
        assert isinstance(self.model, Stage)
        self._microbatches = config.microbatches
        self.versions = WeightVersions(self.model.parameters())
        self._stage = AsynchronousStage(
            self.model,
            self.stages.index,
            self.stages,
            device,
            timeline=self.timeline,
            recorder=recorder,
            recompute=strategy["recompute"] == "full",
        )
        self._begun = self._done = 0
        self.lag = self.stages.size
        # Each of the optimizer's groups has its rate here, for the steps whose update is to come.
        self._rates: deque[list[float]] = deque()

    @property
    def rule(self) -> WeightRule:
        """Return which weights this stage's micro-batches see."""
        strategy = self.context.config.strategy
        return WeightRule(
            stages=self.stages.size,
            stage=self.stages.index,
            microbatches=self.context.config.microbatches,
            stash=strategy["stash"],
            vertical_sync=strategy["vertical_sync"],
        )

    def held_tensors(self) -> Mapping[str, Sequence[Tensor]]:
        """Return all versions of the weights, besides what `StageModule` does."""
        return {**super().held_tensors(), "weights": self.versions.tensors}

    def predicted_memory(self, strategy: Strategy, device: torch.device) -> LiveBytes:
        """Predict the live tensors of a step on `device`."""
        assert isinstance(self.model, Stage)
        kept = self._stage.most_sent
        return predicted_memory.of_asynchronous_stage(
            self.context, self.model, self.task, device, self.rule, kept
        )

    def training_step(self, batch: Batch, _: int) -> None:
        """Begin one batch's micro-batches, and do the backward passes and the update that are due by then."""
        optimizer = self._optimizer()
        self._rates.append([group["lr"] for group in optimizer.param_groups])
        first = self._begun
        for index in range(self._microbatches):
            number = first + index
            # What it is given may arrive meanwhile.
            self._stage.expect(number)
            if number - self._done == self.rule.depth:
                self._backward()
            self._forward(batch, index, number)
            self._begun += 1
        stale = [self.rule.staleness(first + index) for index in range(self._microbatches)]
        self.staleness = sum(stale) / len(stale)
        self.timeline.end_step()

    def _forward(self, batch: Batch, index: int, number: int) -> None:
        """Run the forward pass of the micro-batch `index` of a batch, which is the `number`th under way."""
        rows = order.even_slice(self.context.config.worker_batch, index, self._microbatches)

        def loss(returned: Tensor | Tensors) -> Tensor:
            targets = tuple(tensor[rows] for tensor in batch.targets or ())
            return self.loss(model_outputs(returned), targets, batch.divisor)

        self.versions.load(self.rule.version(number))
        inputs = tuple(tensor[rows] for tensor in batch.inputs or ())
        self._stage.forward(number, index, inputs, loss if self.last else None)

    def _backward(self) -> None:
        """Run the backward pass of the oldest micro-batch under way, and update after a step's last one."""
        number = self._done
        if number % self._microbatches == 0:
            self._optimizer().zero_grad()
        self.versions.load(self.rule.version(number))
        self._stage.backward(number, number % self._microbatches)
        self._done += 1
        if self._done % self._microbatches == 0:
            self.timeline.mark("optimizer")
            self._update()

    def _update(self) -> None:
        """Take the optimizer's step of the step whose last backward pass is done, at its own rate."""
        self._settle_gradients()
        optimizer = self._optimizer()
        present = [group["lr"] for group in optimizer.param_groups]
        _set_rates(optimizer, self._rates.popleft())
        self.versions.update(optimizer.step, oldest=self.rule.version(self._done))
        _set_rates(optimizer, present)

    @torch.enable_grad()
    def drain(self) -> None:
        """Do what is left of all micro-batches under way; all ranks call this method after the same step."""
        if not self._begun:
            return
        while self._done < self._begun:
            self._backward()
        self._stage.finish()
        self.timeline.mark("idle")
        self.versions.restart()
        self._begun = self._done = 0

    def _optimizer(self) -> pl.core.optimizer.LightningOptimizer:
        optimizer = self.optimizers()
        assert isinstance(optimizer, pl.core.optimizer.LightningOptimizer)
        return optimizer

    def _most_saved(self, saved: Mapping[int, SavedTensors]) -> float:
        recompute = self.context.config.strategy["recompute"]
        return most_bytes_when_full(self.rule, saved[self.stages.index], recompute)


def _set_rates(optimizer: Any, rates: list[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate

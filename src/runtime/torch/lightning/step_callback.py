"""Define what a Lightning callback here is told of: micro-batches and epochs that have ended."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl

from src.config import own_training
from src.runtime.common.context import RankContext
from src.runtime.common.learning_rate import LearningRate
from src.runtime.torch import update_rule
from src.runtime.torch.lightning.module import TrainingModule


class StepCallback(pl.Callback):
    """A Lightning callback that is told of steps and epochs that have ended.

    Lightning tells it before the module's own hooks are called. Where these count, whoever wraps them tells
    it (`src/runtime/torch/lightning/own_module.py`).

    Attributes:
        context: the rank's context.
        module: the module that is trained, or that records for the author's.
        rate: the learning rate of each step, `None` where the model's own schedulers set it.
    """

    def __init__(self, context: RankContext, module: TrainingModule) -> None:
        """Follow the training of `module` by the rank of `context`."""
        self.context = context
        self.module = module
        self.rate: LearningRate | None = None
        if not own_training.has_own_update(context.config):
            self.rate = LearningRate.of(context.config, context.arrays.train_samples)

    def set_rate(self, trainer: pl.Trainer, done: int) -> None:
        """Set the learning rate of the step that follows `done` steps, unless the model's schedulers do."""
        if self.rate is not None:
            update_rule.set_rate(trainer.optimizers[0], self.rate(done))

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: Any, index: int
    ) -> None:
        """End a micro-batch, unless the module's own hook is to come first."""
        if module is self.module:
            self.end_batch(trainer, index)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """End an epoch, unless the module's own hook is to come first."""
        if module is self.module:
            self.end_epoch(trainer)

    def end_batch(self, trainer: pl.Trainer, index: int) -> None:
        """Do what follows the micro-batch `index` of an epoch."""

    def end_epoch(self, trainer: pl.Trainer) -> None:
        """Do what follows an epoch."""

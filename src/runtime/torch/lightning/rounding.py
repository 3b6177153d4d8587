"""Train a `single` run's first steps once more, from weights that are changed by one last digit."""

from __future__ import annotations

import gc

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import Strategy
from torch import nn

from src.measure.arithmetic import PARITY_STEPS
from src.measure.recorder import Recorder
from src.runtime.common import rounding
from src.runtime.common.context import RankContext
from src.runtime.torch import setup, step_seeds
from src.runtime.torch.feed import Batch, Feed
from src.runtime.torch.lightning.fit import make_trainer, module_of, train
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.lightning.step_callback import StepCallback


@torch.no_grad()
def nudge(model: nn.Module, seed: int) -> None:
    """Change each trained weight by one unit in the last place of its type, up or down by `seed`.

    torch's random numbers stay as they are.
    """
    generator = rounding.generator_of(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            values = torch.view_as_real(parameter) if parameter.is_complex() else parameter
            toward = torch.from_numpy(rounding.directions(generator, values.shape))
            values.copy_(torch.nextafter(values, toward.to(values)))


def measure_gap(context: RankContext, recorder: Recorder, strategy: Strategy) -> None:
    """Measure the `rounding_gap` of a finished training, as `src.runtime.common.rounding` says.

    Args:
        context: the rank's context.
        recorder: the rank's recorder.
        strategy: a new Lightning strategy like that of the training.
    """

    def first_losses() -> list[float]:
        # The trained model, which nobody needs any longer, may be held in circles of references.
        gc.collect()
        model = setup.build(context)
        nudge(model, context.config.seed)
        module = module_of(context, model)
        feed = module.feed(recorder, setup.root_device(context))
        callback = LossCallback(context, feed, module)
        train(make_trainer(context, strategy, feed, callback), module, feed, callback)
        return callback.losses

    rounding.measure_gap(context, recorder, first_losses)


class LossCallback(StepCallback):
    """A Lightning callback that keeps the losses of the first steps, and then ends the training.

    Attributes:
        losses: the mean loss of each completed step.
    """

    def __init__(self, context: RankContext, feed: Feed, module: TrainingModule) -> None:
        """Follow the training of `module` by `feed`, which is turned to the next epoch at the end of each."""
        super().__init__(context, module)
        self.losses: list[float] = []
        self._feed = feed

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Set the first step's learning rate."""
        self.set_rate(trainer, 0)

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Batch, index: int
    ) -> None:
        """Seed what a step draws, which is what it drew in the training."""
        if index % self._feed.parts == 0:
            step_seeds.seed(self.context.config, self.context.rank, len(self.losses))

    def end_batch(self, trainer: pl.Trainer, index: int) -> None:
        """Keep the loss of a completed optimizer step, and set the next one's learning rate."""
        if (index + 1) % self._feed.parts == 0:
            self.losses.append(float(self.module.take_loss()))
            self.set_rate(trainer, len(self.losses))
            trainer.should_stop = len(self.losses) >= PARITY_STEPS

    def end_epoch(self, trainer: pl.Trainer) -> None:
        """Turn the feed to the next epoch."""
        self._feed.end_epoch()

"""Try a LightningModule before any rank is started: one step and one evaluation, as Lightning runs them."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import nn

from src.config import ConfigError, own_training
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.lightning.callback import TrainingCallback
from src.runtime.torch.lightning.fit import make_trainer, train
from src.runtime.torch.lightning.own_module import OwnModule
from src.tasks.torch.own_loss import OwnLoss

# Samples of each micro-batch, and those that are validated.
SAMPLES, TESTED = 2, 3


class OneStep(TrainingCallback):
    """A callback that evaluates after the first step, and then ends the training."""

    def end_batch(self, trainer: pl.Trainer, index: int) -> None:
        """Evaluate and end after the last micro-batch of the first step."""
        if (index + 1) % self.feed.parts == 0:
            self.recorder.step(self.module.take_loss(), SAMPLES, epoch=1)
            self._evaluate(self.module)
            trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, _: pl.LightningModule) -> None:
        """Leave the record as it is."""


def check_training(context: RankContext, model: nn.Module, note: Callable[[str], None] = print) -> None:
    """Train a LightningModule for one step of two samples, validate it by three, and keep nothing of it.

    `note` is told what of the module isn't used. What the module raises is raised as it is.

    Raises:
        ConfigError: for a module that the strategy can't train as its author wrote it.
    """
    assert isinstance(model, pl.LightningModule)
    config = context.config
    hardware = dataclasses.replace(config.hardware, device="cpu")
    context = dataclasses.replace(context, config=dataclasses.replace(config, hardware=hardware))
    module = OwnModule(context, model)
    module.test_samples = TESTED
    if is_overridden("train_dataloader", model):
        note(f"note: its train_dataloader isn't used: it trains on dataset={config.dataset['name']}")
    if isinstance(module.task, OwnLoss) and not is_overridden("validation_step", model):
        if not model.automatic_optimization:
            raise ConfigError(
                f"{module.name}: has no validation_step, and its training_step, which updates the weights "
                "itself, can't take the place; write one"
            )
        note("note: it has no validation_step; its test loss is that of training_step in evaluation mode")
    if not model.automatic_optimization:
        _check_by_hand(context, module.name)
    strategy = SingleDeviceStrategy(device=torch.device("cpu"))
    with tempfile.TemporaryDirectory(prefix="scaleguide-") as folder:
        recorder = Recorder(config, 0, Path(folder), started=time.time(), probes=False)
        feed = module.feed(recorder, torch.device("cpu"))
        feed.most = SAMPLES
        callback = OneStep(context, recorder, feed, module, unchanged_ranks, None)
        trainer = make_trainer(context, strategy, feed, callback)
        train(trainer, module, feed, callback)
    _check_update(context, module, trainer)


def unchanged_ranks() -> contextlib.AbstractContextManager[None]:
    """Leave the only rank's model as it is for an evaluation."""
    return contextlib.nullcontext()


def _check_by_hand(context: RankContext, name: str) -> None:
    """Raise `ConfigError` where a module that optimises by hand doesn't go with the run."""
    config = context.config
    strategy = f"strategy={config.strategy['name']}"
    shares = config.data_parallel_degree > 1
    if shares and not config.synchronous:
        raise ConfigError(
            f"{name}: optimises by hand, and {strategy} counts a step of each optimizer; choose "
            "strategy=single, ddp or mpi"
        )
    # Whoever goes backward by hand goes by a loss that nobody weighs.
    for key in ("microbatches", "batch_shares"):
        if (value := getattr(config, key)) not in (1, "equal"):
            raise ConfigError(
                f"{key}={value}: {name} optimises by hand, each rank's batch as a whole; leave it away"
            )


def _check_update(context: RankContext, module: OwnModule, trainer: pl.Trainer) -> None:
    """Raise `ConfigError` where the optimizers or schedulers of a trained module don't go with the run."""
    config, name = context.config, module.name
    strategy = f"strategy={config.strategy['name']}"
    shares = config.data_parallel_degree > 1
    if not trainer.optimizers:
        raise ConfigError(f"{name}: its configure_optimizers returns none, by which nothing is trained")
    closures = [each for each in trainer.optimizers if isinstance(each, torch.optim.LBFGS)]
    if closures and shares:
        raise ConfigError(
            f"{name}: its optimizer LBFGS searches by each rank's own loss, and ranks under {strategy} would "
            "come apart; choose strategy=single"
        )
    for scheduler in trainer.lr_scheduler_configs:
        if not scheduler.reduce_on_plateau or scheduler.monitor in trainer.callback_metrics:
            continue
        logged = ", ".join(trainer.callback_metrics) or "nothing"
        raise ConfigError(
            f"{name}: a scheduler of its monitors {scheduler.monitor!r}, and what it logs is {logged}"
        )
    if own_training.has_own_update(config) and config.strategy.get("outer", "none") != "none":
        rates = {group["lr"] for each in trainer.optimizers for group in each.param_groups}
        if len(rates) > 1:
            raise ConfigError(
                f"strategy.outer={config.strategy['outer']}: goes by one learning rate, and {name} has "
                f"several; leave it away"
            )

"""Wrap private parts of Lightning: its broadcast of signals, its validation, hooks and options of DDP."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.trainer import call
from torch import nn


def leave_sigterm_to_the_parent(trainer: pl.Trainer) -> None:
    """Turn off the broadcast of whether rank 0 received a SIGTERM, which Lightning 2.6 does at every batch.

    Waiting for it would be timed with every step, and here the parent ends all ranks together.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    if hasattr(loop, "_broadcast_sigterm_tensor"):
        loop._broadcast_sigterm_tensor = lambda: None


class DDPStrategyWithHooks(DDPStrategy):
    """A DDPStrategy that registers communication hooks on every device; Lightning's does on GPUs alone."""

    def register_hooks(self, model: nn.parallel.DistributedDataParallel) -> None:
        """Register communication hooks on `model`; without an override there are none."""

    def find_unused_parameters(self) -> None:
        """Have DDP find out in each step which parameters get no gradient; called before the set-up."""
        self._ddp_kwargs["find_unused_parameters"] = True

    def _register_ddp_hooks(self) -> None:
        assert isinstance(self.model, nn.parallel.DistributedDataParallel)
        self.register_hooks(self.model)


def validate(trainer: pl.Trainer) -> None:
    """Run the validation of a module in training at once, as Lightning does where it is due."""
    loop: Any = trainer.fit_loop.epoch_loop
    connector: Any = trainer._logger_connector
    first = connector._first_loop_iter
    trainer.validating = True
    if not loop._should_accumulate():
        call._call_lightning_module_hook(trainer, "on_validation_model_zero_grad")
    loop.val_loop.run()
    trainer.training = True
    connector._first_loop_iter = first


def current_hook(module: pl.LightningModule) -> str:
    """Return the name of the module's method that Lightning is calling, empty outside of all."""
    return module._current_fx_name or ""

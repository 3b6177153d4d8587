"""Watch a rank that trains under Lightning, and undo in each step what an audit wants undone."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import pytorch_lightning as pl
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from src.run import files
from src.runtime.common.context import RankContext
from src.runtime.torch.audit import changes
from src.runtime.torch.audit.watch import Watch
from src.runtime.torch.lightning.module import TrainingModule


class AuditCallback(pl.Callback):
    """A Lightning callback that watches one rank of an audited run."""

    def __init__(self, context: RankContext, module: TrainingModule, *, first: int, parts: int) -> None:
        """Watch the rank of `context`.

        Args:
            context: the rank's context.
            module: what is trained, or what records for the author's own module.
            first: how many steps a resumed run has done.
            parts: batches of Lightning's, which are micro-batches, in a step.
        """
        self._context = context
        self._parts = parts
        self._module = module
        self._step = first
        assert context.config.audit is not None
        self._steps = context.config.audit["steps"]
        self._watch: Watch | None = None
        self._undo: AbstractContextManager[None] = contextlib.nullcontext()
        self._hook: Any = None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Begin to watch the model, and every optimizer's steps: the gradients then are those it took."""
        folder = files.rank_folder(self._context.folder, self._context.rank)
        self._watch = Watch(folder, self._module.model, self._module.prefix, self._module.tied)
        self._hook = register_optimizer_step_post_hook(self._after_step)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        assert self._watch is not None
        taken = {id(each): each for group in optimizer.param_groups for each in group["params"]}
        self._watch.look_at_gradients(taken)

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, index: int
    ) -> None:
        """Look at the weights before the first micro-batch of a step."""
        assert self._watch is not None
        # What the module's own hooks have changed since the last one is undone, too.
        self._undo.__exit__(None, None, None)
        if index % self._parts == 0:
            self._watch.begin(self._step + 1)
        self._undo = changes.state_kept(self._context.config, self._module.model)
        self._undo.__enter__()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Give parameters without a gradient one of zeros, where the audit asks for it."""
        if changes.ZERO_GRADIENTS in self._context.config.changes:
            changes.fill_gradients(optimizer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Write what was seen, once the step is complete."""
        assert self._watch is not None
        if (index + 1) % self._parts == 0:
            self._step += 1
            self._watch.end(self._step)
            # All ranks end with this step, without an agreement.
            trainer.should_stop |= self._step == self._steps

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Leave the optimizers of the process alone again."""
        self._undo.__exit__(None, None, None)
        self._hook.remove()

"""The model under Lightning: a training step, its sums, and the evaluation of a rank's share."""

from __future__ import annotations

from typing import Any, SupportsFloat

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.data import order
from src.measure.recorder import Recorder
from src.runtime.shares import Shares
from src.runtime.torch import basics, checkpoint
from src.runtime.torch.feed import Batch, Feed, to_inputs
from src.worker import Run


class Training(pl.LightningModule):
    """The model under Lightning: cross-entropy, and the epoch's sums of loss and correct answers.

    A strategy whose ranks hold parts of the model overrides what a part does differently.
    """

    # What this rank's parameters are called before their names in the whole model.
    prefix = ""

    def __init__(self, run: Run, model: nn.Module) -> None:
        super().__init__()
        self.run = run
        self.model = model
        self.sums = torch.zeros(3, dtype=torch.float64)  # loss x samples, correct, samples
        self.step_loss, self.step_samples = torch.zeros(()), 0
        self.split = Shares(run.config)
        config = run.config
        # Of a global batch: all ranks' micro-batches.
        self.pieces = config.microbatches * (
            config.workers if config.strategy["supports"]["shares_batch"] else 1
        )

    def feed(self, recorder: Recorder, device: torch.device) -> Feed:
        """What this rank trains on: a micro-batch at a time."""
        return Feed(self.run, recorder, device, parts=self.run.config.microbatches, shares=self.split)

    def training_step(self, batch: Batch, _: int) -> Tensor | None:
        """Mean loss of one micro-batch."""
        inputs, labels = batch
        return self.loss(self.model(inputs), labels)

    def loss(self, logits: Tensor, labels: Tensor | None) -> Tensor:
        """Mean cross-entropy of one micro-batch, which is added to the step's and the epoch's sums."""
        assert labels is not None
        loss = functional.cross_entropy(logits, labels)
        # The mean of all ranks' and micro-batches' losses is the global batch's, whatever their sizes.
        weight = len(labels) * self.pieces / self.run.config.global_batch
        with torch.no_grad():
            whole = loss.detach() * len(labels)
            self.step_loss = self.step_loss + whole
            self.step_samples += len(labels)
            self.sums = self.sums + basics.sums(whole, logits, labels)
        return loss if weight == 1 else loss * weight

    def take_loss(self) -> SupportsFloat:
        """Mean loss of this rank's share of the step that has just been completed."""
        loss = self.step_loss / max(1, self.step_samples)
        self.step_loss, self.step_samples = torch.zeros((), device=loss.device), 0
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of the configuration, over this rank's parameters."""
        # A stage's operations may have no parameters at all, and torch wants some.
        own = list(self.parameters()) or [torch.zeros(0, requires_grad=True)]
        return basics.optimizer_of(self.run.config.optimizer, own)

    @torch.no_grad()
    def evaluate(self, device: torch.device) -> Tensor:
        """(loss x samples, correct, samples) over this rank's shard of the test set, as float64 [3]."""
        run, arrays = self.run, self.run.arrays
        found = torch.zeros(3, dtype=torch.float64, device=device)
        self.model.eval()
        try:
            for part in order.pieces(
                self.split.of(run.rank, arrays.test_samples), run.config.evaluation_batch
            ):
                images = torch.from_numpy(arrays.test_images[part].copy())
                labels = torch.from_numpy(arrays.test_labels[part].copy()).to(device)
                logits = self.model(to_inputs(run, images, device)).float()
                found += basics.sums(
                    functional.cross_entropy(logits, labels, reduction="sum"), logits, labels
                )
        finally:
            self.model.train()
        return found

    def shares(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]] | None:
        """What a checkpoint consists of, on rank 0; `None` elsewhere. All ranks call it."""
        return [checkpoint.collect(self.model, optimizer)] if self.run.rank == 0 else None

    def facts(self, device: torch.device) -> dict[str, Any]:
        """What the record says of the whole model; called by every rank after training.

        A synchronised BatchNorm waits for the other ranks in there.
        """
        return basics.facts(self.run, self.model, device)

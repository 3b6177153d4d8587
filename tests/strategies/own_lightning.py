"""LightningModules, DataModules and Datasets as their authors might have written them, for tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torchmetrics
from pytorch_lightning.core import hooks
from pytorch_lightning.demos.transformer import LightningTransformer, WikiText2
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split


class Points(Dataset):
    """Points of which each item is jittered at random, by all three generators."""

    def __init__(self, train: bool = True, count: int = 96) -> None:
        self.points = torch.linspace(-1, 1, count * 6).reshape(count, 6).roll(17 if train else 3, 0)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        jitter = torch.randn(6) + float(np.random.rand())
        return {"x": self.points[index] + 0.1 * jitter, "y": self.points[index].sum()}


class Slow(Points):
    """Points that take long to read beside what a step computes."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(0.003)
        return super().__getitem__(index)


class Data(pl.LightningDataModule):
    """Points in two splits that are drawn when it is set up."""

    def __init__(self, batch_size: int = 16) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        points = torch.randn(200, 6)
        self.train, self.val = random_split(TensorDataset(points, points.sum(1).sin()), [160, 40])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, batch_size=13)


class Base(pl.LightningModule):
    """Two layers and dropout."""

    def __init__(self, rate: float = 0.05, dropout: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).squeeze(1)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch.values() if isinstance(batch, dict) else batch
        return functional.mse_loss(self(x), y.to(x))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any) -> Tensor:
        loss = self.loss(batch)
        self.log("val_loss", loss)
        return loss


class Hooked(Base):
    """Two schedulers, logged values, clipping, and an average of the weights that its validation goes by."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.average = nn.Linear(6, 8)
        self.average.requires_grad_(False)
        self.calls: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_error", loss, on_epoch=True)
        self.log("rate", self.optimizers().param_groups[0]["lr"], batch_size=1)
        return {"loss": loss, "more": 1}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # Its difference from the weights decides the next batch's loss.
        for mean, value in zip(self.average.parameters(), self.model[0].parameters(), strict=True):
            mean.lerp_(value, 0.3)
        if float(outputs["loss"]) > 0:
            self.model[0].bias.data.mul_(0.99)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss = self.loss(batch) + self.average.weight.square().mean()
        self.log("val_loss", loss)
        self.log("largest", loss, reduce_fx="max")

    def on_train_epoch_end(self) -> None:
        self.log("weights", self.model[0].weight.norm())

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.model[3].bias.grad.mul_(0.5)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.7, gradient_clip_algorithm="norm")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(
            [{"params": self.model[0].parameters()}, {"params": self.model[3].parameters(), "lr": 0.02}],
            lr=self.hparams.rate,
        )
        steps = self.trainer.estimated_stepping_batches
        cosine = lr_scheduler.CosineAnnealingLR(optimizer, steps)
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        return [optimizer], [
            {"scheduler": cosine, "interval": "step", "frequency": 2},
            {"scheduler": plateau, "monitor": "val_loss"},
        ]


class Plain(Base):
    """The project's own optimizer trains it, for it has none."""


class Images(pl.LightningModule):
    """A classifier of images."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1], classes)
        self.normal = nn.BatchNorm1d(classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.normal(self.layer(x.flatten(1)))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1], label_smoothing=0.1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Adversaries(Base):
    """Two optimizers that take turns, stepped by hand, with a scheduler of one."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(6, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()
        x, _ = batch
        for optimizer, loss in (
            (first, self.loss),
            (second, lambda _: (self.other(x) - self(x)[:, None]).square().mean()),
        ):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(loss(batch))
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        self.lr_schedulers().step()

    def configure_optimizers(self) -> Any:
        first = torch.optim.Adam(self.model.parameters(), lr=0.02)
        second = torch.optim.SGD(self.other.parameters(), lr=0.05)
        return [first, second], [lr_scheduler.StepLR(first, 3, 0.5)]


HOOKS = [
    name
    for kind in (hooks.ModelHooks, hooks.DataHooks)
    for name in vars(kind)
    if not name.startswith("_") and not name.endswith(("_dataloader", "_data", "_model", "sharded_model"))
]
METHODS = [
    "training_step", "validation_step", "configure_optimizers", "configure_gradient_clipping", "backward",
    "lr_scheduler_step", "optimizer_step", "optimizer_zero_grad", "on_validation_model_eval",
    "on_validation_model_zero_grad",
]  # fmt: skip


def recorded(name: str) -> Any:
    """A method that keeps that it was called, and does what it would have done."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        self.calls.append(name)
        return getattr(super(Everything, self), name)(*arguments, **named)

    return method


class Everything(Hooked):
    """Keeps which of its methods are called, in their order."""


for _name in (*HOOKS, *METHODS):
    setattr(Everything, _name, recorded(_name))


class ByOwnSamples(Base):
    """Moves a weight by the samples that it sees."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.model[0].bias.data.add_(batch[0].mean())


class Words(WikiText2):
    """Lightning's demonstration text, of a file that is there."""

    def __init__(self, folder: str) -> None:
        super().__init__(Path(folder), block_size=7, download=False)


class Transformer(LightningTransformer):
    """Lightning's demonstration transformer."""


class NoStep(pl.LightningModule):
    """No training_step."""


class NeedsLogger(Base):
    """Asks its Trainer for what a run doesn't have."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.logger.experiment.add_scalar("loss", 1.0)
        return self.loss(batch)


class Skips(Base):
    """Would skip a step."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        return None


class Calls(Base):
    """Has a callback of its own."""

    def configure_callbacks(self) -> Any:
        return [pl.callbacks.EarlyStopping("val_loss")]


class Unmonitored(Base):
    """A scheduler of a value that nobody logs."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_acc"}}


class Stream(torch.utils.data.IterableDataset):
    """No map-style Dataset."""

    def __iter__(self) -> Any:
        return iter(range(10))


class Weighted(Data):
    """A sampler of its own."""

    def train_dataloader(self) -> DataLoader:
        sampler = torch.utils.data.WeightedRandomSampler([1.0] * 160, 160)
        return DataLoader(self.train, batch_size=16, sampler=sampler)


class Measured(Base):
    """Logs metrics of torchmetrics, which add up by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.trained_error, self.error = torchmetrics.MeanAbsoluteError(), torchmetrics.MeanAbsoluteError()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.trained_error(self(batch[0]), batch[1])
        self.log("mae", self.trained_error, on_step=False, on_epoch=True)
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.error.update(self(batch[0]), batch[1])
        self.log_dict({"val_mae": self.error})
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

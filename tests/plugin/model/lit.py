"""A LightningModule whose own loss is a mean over the labels that count, however many a batch has."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional


class Counting(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.Tanh(), nn.Linear(24, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: Any, index: int) -> Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self(images), torch.where(labels >= 3, labels, -100))
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 1e-3)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class Plain(Counting):
    def training_step(self, batch: Any, index: int) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(self(images), labels)


class Squares(torch.utils.data.Dataset):
    """Points of fp32, and the sums of their squares."""

    def __init__(self) -> None:
        self.points = torch.randn(400, 3)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        point = self.points[index] + 0.01 * torch.randn(3)
        return point, point.square().sum()


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, points: Tensor) -> Tensor:
        return self.net(points).squeeze(1)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return functional.mse_loss(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-2, momentum=0.9)

"""Classifications whose loss isn't the sum over samples that a task's is to be."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from src.tasks.torch.classification import Classification

IGNORED = 3


class Ignoring(Classification):
    """Leaves out the labels below `IGNORED`, and has a mean over the others."""

    def loss(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        counts = targets[0] >= IGNORED
        labels = torch.where(counts, targets[0], -100)
        if not counts.any():
            return outputs[0].sum() * 0
        return functional.cross_entropy(outputs[0], labels) * len(labels)


class Contrastive(Classification):
    """Has each sample's outputs be unlike those of the other samples of the batch."""

    def loss(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        own = functional.normalize(outputs[0], dim=1)
        likeness = own @ own.t() / 0.5
        return functional.cross_entropy(likeness, torch.arange(len(own)), reduction="sum")

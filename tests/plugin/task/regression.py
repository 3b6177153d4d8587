"""Tasks from outside: squared error, as a mean over samples, or over the numbers that are known."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from src.tasks.torch.task import Task


class Regression(Task):
    """Predicts all numbers of a sample."""

    sums = ("absolute", "squared")

    def loss(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        return self.options["weight"] * self.errors(outputs, targets).square().sum()

    def score(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        errors = self.errors(outputs, targets)
        return torch.stack([errors.abs().sum(), errors.square().sum()]) / self.classes

    def metrics(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        return {
            "mean_absolute_error": sums["absolute"] / samples,
            "mean_squared_error": sums["squared"] / samples,
        }

    def errors(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        """How far each number [samples, numbers] is off; a second output is added to all of a sample."""
        numbers, common = outputs
        return numbers + common.unsqueeze(1) - targets[0]


class KnownRegression(Regression):
    """Predicts the numbers that are known."""

    divisor = "targets"

    def count(self, targets: tuple[Tensor, ...]) -> Tensor:
        return targets[1].sum()

    def errors(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        return super().errors(outputs, targets) * targets[1]

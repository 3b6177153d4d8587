"""Add up what a LightningModule logs by `self.log`, over samples and over ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

TRAIN, VALIDATION = "train", "validation"
# MLflow's names have no other characters, and some are those of the recorder's own curves.
UNFIT = re.compile(r"[^\w\-. :/]")
TAKEN = ("loss", "step_seconds", "seconds", "accuracy")
# Two values become one by these, where that is no mean.
REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}
# Hooks that are called once an epoch, where a value counts once.
ONCE = ("_epoch_start", "_epoch_end", "validation_start", "validation_end", "train_start")


class Sum(NamedTuple):
    """A number that was logged several times.

    Attributes:
        reduction: a word of `REDUCTIONS`, or that of a mean.
        value: what the values are reduced to [], of a mean their weighted sum.
        weight: the sum of the values' weights.
    """

    reduction: str
    value: Tensor
    weight: float

    def plus(self, other: Sum) -> Sum:
        """Return both as one."""
        reduce = REDUCTIONS.get(self.reduction, torch.add)
        return Sum(self.reduction, reduce(self.value, other.value), self.weight + other.weight)

    def result(self) -> float:
        """Return the reduced value; of no sample it isn't a number."""
        if self.reduction in REDUCTIONS:
            return float(self.value)
        return float(self.value) / self.weight if self.weight else math.nan


class Logged:
    """Values logged since the last evaluation, by stage and name.

    A number is a mean over samples, as Lightning's of an epoch, or what `reduce_fx` says. A metric of
    torchmetrics is computed by itself, over all ranks.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, Sum]] = {}
        self._metrics: dict[str, dict[str, Any]] = {}

    def add(self, stage: str, name: str, value: Any, weight: float, reduction: Any) -> None:
        """Add a value, of as many samples as `weight` says.

        Args:
            stage: `TRAIN` or `VALIDATION`.
            name: the name that it is logged by.
            value: a number, a tensor with one element, or a metric of torchmetrics.
            weight: of the value in a mean.
            reduction: Lightning's `reduce_fx`.
        """
        if hasattr(value, "compute"):
            self._metrics.setdefault(stage, {})[name] = value
            return
        word = getattr(reduction, "__name__", str(reduction))
        number = torch.as_tensor(value).detach().double().reshape(())
        new = Sum(word, number.clone() if word in REDUCTIONS else number * weight, weight)
        numbers = self._numbers.setdefault(stage, {})
        numbers[name] = numbers[name].plus(new) if name in numbers else new

    def loss(self, stage: str) -> tuple[float, int] | None:
        """Return the weighted sum of the first number whose name says that it is a loss, and its weight."""
        for name, number in self._numbers.get(stage, {}).items():
            if "loss" in name.lower() and number.reduction not in REDUCTIONS:
                return float(number.value), round(number.weight)
        return None

    def take(self, stage: str, computed: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the stage's values by name, of all ranks, and begin anew; all ranks call this method.

        Args:
            stage: `TRAIN` or `VALIDATION`.
            computed: metrics of torchmetrics that Lightning has computed already, by name.
        """
        numbers, metrics = self._numbers.pop(stage, {}), self._metrics.pop(stage, {})
        own = {name: number._replace(value=number.value.cpu()) for name, number in numbers.items()}
        ranks: list[Any] = [own]
        if dist.is_initialized() and dist.get_world_size() > 1:
            ranks = [None] * dist.get_world_size()
            dist.all_gather_object(ranks, own)
        whole: dict[str, Sum] = {}
        for each in ranks:
            for name, number in each.items():
                whole[name] = whole[name].plus(number) if name in whole else number
        found = {name: number.result() for name, number in whole.items()}
        found |= {
            name: float(computed[name] if name in computed else metric.compute())
            for name, metric in metrics.items()
        }
        # There are no other numbers in JSON.
        return {fit(name): value if math.isfinite(value) else None for name, value in found.items()}


def fit(name: str) -> str:
    """Return a name under which a value can be kept in MLflow, beside the recorder's own curves."""
    return UNFIT.sub("_", f"logged_{name}" if name in TAKEN else name)


def weight_in(hook: str, samples: int) -> float:
    """Return the weight in a mean, as Lightning's, of a value that a hook logs of a batch of samples."""
    return 1.0 if hook.endswith(ONCE) else float(samples)

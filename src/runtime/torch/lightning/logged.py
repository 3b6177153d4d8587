"""Add up what a LightningModule logs by `self.log`, over samples and over ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

import torch.distributed as dist
from torch import Tensor

TRAIN, VALIDATION = "train", "validation"
# What a name may have in MLflow, where the names of the recorder's own curves are taken.
UNFIT = re.compile(r"[^\w\-. :/]")
TAKEN = ("loss", "step_seconds", "seconds", "accuracy")
# Several values become one by these, where that is no mean.
REDUCTIONS: dict[str, Callable[[list[float]], float]] = {"sum": math.fsum, "max": max, "min": min}
# Hooks that are called once an epoch, where a value counts once.
ONCE = ("_epoch_start", "_epoch_end", "validation_start", "validation_end", "train_start")


class Logged:
    """Values logged since the last evaluation, by stage and name.

    A number is a mean over samples, as Lightning's of an epoch, or what `reduce_fx` says. A metric of
    torchmetrics is computed by itself, over all ranks.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, tuple[str, list[tuple[SupportsFloat, float]]]]] = {}
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
        name = UNFIT.sub("_", name)
        if hasattr(value, "compute"):
            self._metrics.setdefault(stage, {})[name] = value
            return
        word = getattr(reduction, "__name__", str(reduction)).removeprefix("amax")
        kept = value.detach().clone() if isinstance(value, Tensor) else value
        self._numbers.setdefault(stage, {}).setdefault(name, (word, []))[1].append((kept, weight))

    def loss(self, stage: str) -> tuple[float, int] | None:
        """Return the weighted sum of the first number whose name says that it is a loss, and its weight."""
        for name, (word, pairs) in self._numbers.get(stage, {}).items():
            if "loss" in name.lower():
                value, weight = _summed(word, pairs)
                return value, round(weight)
        return None

    def take(self, stage: str, computed: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the stage's values by name, of all ranks, and begin anew; all ranks call this method.

        Args:
            stage: `TRAIN` or `VALIDATION`.
            computed: metrics of torchmetrics that Lightning has computed already, by name.
        """
        numbers, metrics = self._numbers.pop(stage, {}), self._metrics.pop(stage, {})
        own = {name: (word, *_summed(word, pairs)) for name, (word, pairs) in numbers.items()}
        ranks: list[Any] = [own]
        if dist.is_initialized() and dist.get_world_size() > 1:
            ranks = [None] * dist.get_world_size()
            dist.all_gather_object(ranks, own)
        found: dict[str, float | None] = {}
        for name in dict.fromkeys(name for each in ranks for name in each):
            parts = [each[name] for each in ranks if name in each]
            word = parts[0][0]
            if word in REDUCTIONS:
                found[name] = REDUCTIONS[word]([value for _, value, _ in parts])
            else:
                weight = math.fsum(weight for *_, weight in parts)
                found[name] = math.fsum(value for _, value, _ in parts) / weight if weight else math.nan
        for name, metric in metrics.items():
            value = computed[name] if name in computed else metric.compute()
            found[name] = float(value)
        # There are no other numbers in JSON.
        return {
            f"logged_{name}" if name in TAKEN else name: value
            if value is not None and math.isfinite(value)
            else None
            for name, value in found.items()
        }


def weight_in(hook: str, samples: int) -> float:
    """Return the weight in a mean, as Lightning's, of a value that a hook logs of a batch of samples."""
    return 1.0 if hook.endswith(ONCE) else float(samples)


def _summed(word: str, pairs: list[tuple[SupportsFloat, float]]) -> tuple[float, float]:
    """Return a rank's own value of several, and its weight; of a mean the value is the weighted sum."""
    values = [float(value) for value, _ in pairs]
    if word in REDUCTIONS:
        return REDUCTIONS[word](values), 1.0
    return math.fsum(v * weight for v, (_, weight) in zip(values, pairs, strict=True)), math.fsum(
        weight for _, weight in pairs
    )

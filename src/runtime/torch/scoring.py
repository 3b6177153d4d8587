"""Add up what a task says of samples, and turn the sums into a mean loss and metrics.

The sums are one tensor, so that ranks exchange them at once: the loss, what it is to be divided by, the
number of samples, and the task's own sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from src.tasks.torch.task import Task

# Sums before the task's own ones, and the place of the number of samples.
FIRST = 3
SAMPLES = 2


@dataclass(frozen=True)
class Scores:
    """The mean loss and the metrics of samples that were scored together.

    Attributes:
        loss: the mean loss, NaN where it isn't finite.
        metrics: the task's metrics by name.
        samples: how many samples were scored.
    """

    loss: float
    metrics: dict[str, float]
    samples: int


def empty(task: Task, device: torch.device | None = None) -> Tensor:
    """Return the sums over no sample, float64 [3 + the task's sums]."""
    return torch.zeros(FIRST + len(task.sums), dtype=torch.float64, device=device)


def sums(task: Task, loss: Tensor, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
    """Return the sums over training samples [3 + the task's sums], on the loss's device.

    They are to be divided by samples. The task's own are zeros where it doesn't score training samples.

    Args:
        task: the configured task.
        loss: summed loss of the samples [].
        outputs: the model's outputs for these samples.
        targets: their targets.
    """
    score = task.score(outputs, targets) if task.scores_training else loss.new_zeros(len(task.sums))
    return _sums(loss, score, targets)


def test_sums(task: Task, returned: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
    """Return the sums over test samples, as `sums` does; they are divided by what the loss is a mean over.

    Args:
        task: the configured task.
        returned: the model's outputs for these samples, scored in fp32 at least.
        targets: their targets.
    """
    outputs = tuple(wide(tensor) for tensor in returned)
    found = _sums(task.loss(outputs, targets), task.score(outputs, targets), targets).double()
    if task.divisor == "targets":
        found[1] = task.count(targets)
    return found


def _sums(loss: Tensor, score: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
    count = loss.new_full((2,), len(targets[0]))
    return torch.cat([loss.reshape(1), count, score.to(loss)])


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor of half precision in fp32, and any other as it is."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def scores(task: Task, totals: Sequence[float]) -> Scores:
    """Return the scores by the sums over all samples of all ranks, of which there must be at least one."""
    loss, divisor, samples, *own = totals
    metrics = task.metrics(dict(zip(task.sums, own, strict=True)), round(samples))
    mean = loss / max(1.0, divisor)
    return Scores(mean if abs(mean) < float("inf") else float("nan"), metrics, round(samples))

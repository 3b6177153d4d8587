"""Check that a model and a task go together, before any rank is started."""

from __future__ import annotations

import torch
from torch import nn

from src.config import ConfigError
from src.runtime.common.context import RankContext
from src.runtime.torch import scoring, setup
from src.runtime.torch.tensors import input_tensors, target_tensors
from src.tasks.torch.outputs import model_outputs

SAMPLES = 2


@torch.no_grad()
def check_task(context: RankContext, model: nn.Module) -> None:
    """Score two test samples by the configured task.

    Whatever the task or the model raises is raised as it is.

    Raises:
        ConfigError: for a task whose loss, sums or metrics aren't those that it says they are.
    """
    task, cpu = setup.make_task(context), torch.device("cpu")
    name, samples = context.config.task["name"], context.arrays.test.read(slice(SAMPLES))
    targets = target_tensors(task, samples.targets, cpu)
    outputs = model_outputs(model.eval()(*input_tensors(context, samples.inputs, cpu)))
    loss, score = task.loss(outputs, targets), task.score(outputs, targets)
    if loss.shape:
        raise ConfigError(
            f"task={name}: its loss must be one number, the sum, and has the shape {[*loss.shape]}"
        )
    if score.shape != (len(task.sums),):
        raise ConfigError(f"task={name}: its score must be {len(task.sums)} sums, and has {[*score.shape]}")
    found = scoring.scores(task, scoring.test_sums(task, outputs, targets).tolist())
    if missing := [each for each in context.config.task["metrics"] if each not in found.metrics]:
        known = ", ".join(found.metrics) or "none"
        raise ConfigError(f"task={name}: its file lists the metric {missing[0]}, and it gives {known}")

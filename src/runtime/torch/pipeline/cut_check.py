"""Check that a model can be cut, and computes the same in stages, before any rank is started."""

from __future__ import annotations

import torch
from torch import nn

from src.config import ConfigError, choices
from src.partition.torch import comparison
from src.partition.torch.graph import operations
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.pipeline.cutting import check_batchnorm, example_inputs
from src.runtime.torch.tensors import target_tensors

# Samples by which a cut model is compared with the whole one.
SAMPLES = 8


def check_cut(context: RankContext, model: nn.Module) -> int:
    """Check on the CPU that the stages of `model` compute what the model does; return the samples compared.

    These are the first ones of a micro-batch, `SAMPLES` at most. The model is left as it was.

    Raises:
        ConfigError: when the model can't be cut, or computes something else in stages.
    """
    check_batchnorm(context, model)
    cpu, precision = torch.device("cpu"), context.config.precision
    count = min(SAMPLES, context.config.microbatch)
    inputs = example_inputs(context, count, cpu)
    task = setup.make_task(context)
    targets = target_tensors(task, context.arrays.train.read(slice(count)).targets, cpu)
    graph = operations(model, inputs, task.outputs)
    try:
        comparison.check(
            model,
            graph,
            inputs,
            task.outputs,
            lambda outputs: task.loss(outputs, targets) / count,
            precision=precision,
        )
    except comparison.CutDiffersError as error:
        whole = ", ".join(choices.whole_model_strategies())
        raise ConfigError(
            f"strategy={context.config.strategy['name']}: the model can't be cut as it is: {error}; "
            f"strategies that keep it whole are {whole}"
        ) from error
    return count

"""Check that a model can be cut, and computes the same in stages, before any rank is started."""

from __future__ import annotations

import copy

import torch
from torch import nn

from src.config import ConfigError, choices
from src.config.run_config import MESH
from src.config.schedules import SCHEDULES
from src.partition import balance
from src.partition.model_profile import named
from src.partition.plan import CutOptions
from src.partition.torch import comparison
from src.partition.torch.graph import operations
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.checkpoint import tied_names
from src.runtime.torch.looks import SAMPLES, few, float64
from src.runtime.torch.pipeline.cutting import check_batchnorm, example_inputs
from src.runtime.torch.tensors import Tensors, target_tensors


def check_cut(context: RankContext, model: nn.Module) -> int:
    """Check on the CPU that the stages of `model` compute what the model does; return the samples compared.

    These are the first ones of a micro-batch, `SAMPLES` at most, and fewer large ones. The model is left as
    it was.

    Raises:
        ConfigError: when the model can't be cut, or not where it is to be, or stages compute something else.
    """
    check_batchnorm(context, model)
    cpu, precision = torch.device("cpu"), context.config.precision
    given = example_inputs(context, min(SAMPLES, context.config.microbatch), cpu)
    count = few(given)
    inputs = tuple(tensor[:count] for tensor in given)
    task = setup.make_task(context)
    targets = target_tensors(task, context.arrays.train.read(slice(count)).targets, cpu)

    options = CutOptions.of(context.config)

    key = "strategy.pipeline" if context.config.supports.axis == MESH else "workers"
    virtual = context.config.virtual_stages
    key += " x strategy.virtual_stages" if virtual > 1 else ""
    shares = options.tied == "together" and tied_names(model)
    further = ", or strategy.tied=reduce, for layers share a weight" if shares else ""

    def check(model: nn.Module, inputs: Tensors, bound: float | None = None) -> None:
        graph = operations(model, inputs, task.outputs, tied=options.tied)
        stages = context.config.degrees.pipeline * virtual
        balance.check_stages(len(graph.operations), stages, key, further)
        if not isinstance(options.partition, str):
            # Numbers are shares.
            named(graph.names, graph.modules, [each for each in options.partition if isinstance(each, str)])
        comparison.check(
            model,
            graph,
            inputs,
            task.outputs,
            lambda outputs: task.loss(outputs, targets) / count,
            precision=precision,
            bound=bound,
            splits=options.schedule is not None and SCHEDULES[options.schedule].splits,
            again=options.recompute != "none",
            at_once=options.schedule is not None or options.stash is not None,
        )

    try:
        try:
            check(model, inputs)
        except comparison.CutDiffersError:
            # A deep model magnifies rounding; what is another model is one in float64, too.
            if precision != "fp32" or (twin := _copy(model)) is None:
                raise
            wide = tuple(each.double() if each.is_floating_point() else each for each in inputs)
            with float64():
                check(twin.double(), wide, comparison.SHARP)
    except comparison.CutDiffersError as error:
        whole = ", ".join(choices.whole_model_strategies())
        raise ConfigError(
            f"strategy={context.config.strategy['name']}: the model can't be cut as it is: {error}; "
            f"strategies that keep it whole are {whole}"
        ) from error
    return count


def _copy(model: nn.Module) -> nn.Module | None:
    """Return a copy of a model, `None` where it can't be copied, as one with old-style `weight_norm`."""
    try:
        return copy.deepcopy(model)
    except RuntimeError:
        return None

"""Find the plan of a run's model, and rehearse it before any rank is started."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from src.config import ConfigError, choices
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.tensor import plan as planning
from src.runtime.torch.tensor import styles
from src.runtime.torch.tensor.group import TensorGroup
from src.runtime.torch.tensor.plan import Plan, TensorOptions
from src.runtime.torch.tensor.proposals import propose
from src.runtime.torch.tensors import input_tensors


def find(context: RankContext, model: nn.Module, device: torch.device) -> Plan:
    """Return the plan by which a whole model on `device` is split, from the first source that has one.

    These are `strategy.plan`, the model's file, transformers, and the patterns that its graph shows.

    Raises:
        ConfigError: where there is none, or it isn't one of this model.
    """
    plan = _find(context, model, device)
    return dataclasses.replace(plan, sequence=TensorOptions.of(context.config).sequence_parallel)


def _find(context: RankContext, model: nn.Module, device: torch.device) -> Plan:
    config, ranks = context.config, context.config.degrees.tensor
    chosen = TensorOptions.of(config).plan
    if not isinstance(chosen, str):
        return planning.typed(chosen, model, ranks)
    if (words := config.model.get("tensor_plan")) is not None:
        return planning.resolve(f"conf/model/{config.model['name']}.yaml", words, model, ranks, lenient=True)
    if words := getattr(model, planning.ATTRIBUTE, None):
        return planning.resolve("transformers' plan of it", words, model, ranks, lenient=True)
    inputs = input_tensors(context, context.arrays.train.read(slice(2)).inputs, device)
    try:
        words = propose(model, inputs, setup.make_task(context).outputs, ranks)
    except ConfigError as error:
        raise ConfigError(
            f"strategy={config.strategy['name']}: the model brings no plan, and its graph, which could show "
            f"one, isn't to be had ({error}); give strategy.plan=[PATH:HOW,...]"
        ) from error
    if not words:
        whole = ", ".join(choices.whole_model_strategies())
        raise ConfigError(
            f"strategy={config.strategy['name']}: the model has no layers that are recognised as two that "
            f"workers={ranks} can split (linear ones, with nothing between them that mixes features; "
            f"attention by heads); give strategy.plan=[PATH:{styles.COLWISE},PATH:{styles.ROWWISE}], or "
            f"choose one of {whole}"
        )
    return planning.resolve("a proposal from the model's graph", words, model, ranks)


def rehearse(context: RankContext, model: nn.Module) -> None:
    """Find a whole model's plan, split the model in place, and run the first rank's parts alone.

    What it computes without the others is nothing; whether its code runs is seen before ranks are started.
    If they are to be cut, they are such as a tracer takes.

    Raises:
        ConfigError: as `find`, and for a model whose code doesn't run on parts of these layers' features.
    """
    cpu = torch.device("cpu")
    plan = find(context, model, cpu)
    group = TensorGroup(plan.ranks, 0, traced=context.config.cuts)
    planning.parallelize(model, plan, group)
    inputs = input_tensors(context, context.arrays.train.read(slice(2)).inputs, cpu)
    try:
        with torch.no_grad():
            model(*inputs)
    except Exception as error:
        raise ConfigError(failure(context, plan, error)) from error
    group.region.watches = False


def failure(context: RankContext, plan: Plan, error: Exception) -> str:
    """Return the sentence on a model whose code doesn't run on parts of its layers' features."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return (
        f"strategy={context.config.strategy['name']}: split by {plan.source} the model fails ({reason}); "
        f"heads must divide by workers={plan.ranks}, and its code take their number from what a layer "
        "returns, as by view(*shape, -1, head_size)"
    )

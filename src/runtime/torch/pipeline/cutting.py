"""Plan the cut of the model: rank 0 measures the costs, and all ranks make the same plan from them."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from src.compat.torch import has_batch_statistics
from src.config import ConfigError
from src.config.schedules import SCHEDULES
from src.partition import model_profile
from src.partition import plan as planning
from src.partition.model_profile import Link
from src.partition.plan import Plan
from src.partition.torch import cost as measured
from src.partition.torch.graph import Graph
from src.run import files
from src.run.tables import write_text
from src.run.variables import RESUME
from src.runtime.common.context import RankContext
from src.runtime.torch.mesh import Axis
from src.runtime.torch.tensors import Tensors, input_tensors


def example_inputs(context: RankContext, samples: int, device: torch.device) -> Tensors:
    """Return the model's inputs of the first training samples, on `device`."""
    return input_tensors(context, context.arrays.train.read(slice(samples)).inputs, device)


def make_plan(context: RankContext, graph: Graph, inputs: Tensors, stages: Axis, *, overlaps: bool) -> Plan:
    """Plan the cut of `graph`; all ranks call this function and get the same plan.

    Rank 0 measures the costs and writes the plan into the run's directory. A job that is started again takes
    it from there: another cut would round otherwise.

    Args:
        context: the rank's context.
        graph: the whole model as operations.
        inputs: those of a micro-batch [samples, ...] for which the costs are measured.
        stages: the ranks that hold them.
        overlaps: whether stages work at the same time.

    Raises:
        ConfigError: when the model can't be cut as the configuration asks.
    """
    path = context.folder / files.PARTITION
    if RESUME in os.environ:
        earlier = [path.read_text() if context.rank == 0 else None]
        dist.broadcast_object_list(earlier, 0)
        return Plan.from_json(str(earlier[0]))
    precision = context.config.precision
    # Both ends of a link take part in measuring it.
    neighbours = (0, context.world_size // stages.size)
    link = measured.link(inputs[0].device, neighbours) if stages.size > 1 else Link(0.0, 0.0)
    measurements: list[Any] = [None]
    if context.rank == 0:
        schedule = SCHEDULES.get(context.config.strategy.get("schedule", ""))
        splits = schedule is not None and schedule.splits
        costs = measured.costs(graph, inputs, precision=precision, splits=splits)
        measurements = [model_profile.as_numbers(costs, link)]
    dist.broadcast_object_list(measurements, 0)
    costs, link = model_profile.from_numbers(measurements[0])
    model = graph.profile(graph.values(inputs, precision=precision))
    demands = planning.demands_of(context.config, overlaps=overlaps)
    plan = planning.make(model, costs, link, demands)
    if context.rank == 0:
        write_text(path, plan.json())
    return plan


def check_batchnorm(context: RankContext, model: nn.Module) -> None:
    """Check that micro-batches have enough samples for BatchNorm, which would otherwise fail within a step.

    Raises:
        ConfigError: when a model with BatchNorm is to train on micro-batches of one sample.
    """
    if context.config.microbatch > 1 or not has_batch_statistics(model):
        return
    raise ConfigError(
        f"microbatches={context.config.microbatches}: leaves one sample a micro-batch, and BatchNorm needs "
        f"several; choose microbatches={max(1, context.config.worker_batch // 2)} or fewer"
    )

"""From a rank's run to the plan of its cut: what the configuration asks, what is measured, who is told."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from src.config import ConfigError
from src.partition import cost as measured
from src.partition import plan as planning
from src.partition.graph import Graph
from src.partition.outline import Link
from src.partition.plan import Plan
from src.runtime.torch.feed import to_inputs
from src.worker import Run


def example(run: Run, samples: int, device: torch.device) -> Tensor:
    """Images of the first training samples, as the model sees them."""
    return to_inputs(run, torch.from_numpy(run.arrays.train_images[:samples].copy()), device)


def blank(run: Run, samples: int, device: torch.device) -> Tensor:
    """Images without contents, in the same shape and layout."""
    height, width, channels = run.arrays.shape
    return torch.empty(samples, height, width, channels, device=device).permute(0, 3, 1, 2)


def make_plan(run: Run, graph: Graph, inputs: Tensor, *, overlaps: bool) -> Plan:
    """Rank 0 measures, all ranks cut alike; rank 0 keeps the plan in the run's directory."""
    autocast = run.config.precision == "bf16"
    # Both ends of a link take part in measuring it.
    connection = measured.link(inputs.device) if run.world_size > 1 else Link(0.0, 0.0)
    told: list[Any] = [None]
    if run.rank == 0:
        told = [planning.as_numbers(measured.costs(graph, inputs, autocast=autocast), connection)]
    dist.broadcast_object_list(told, 0)
    costs, connection = planning.from_numbers(told[0])
    model = graph.outline(graph.values(inputs, autocast=autocast))
    wanted = planning.wanted(run.config, overlaps=overlaps)
    plan = planning.make(model, costs, connection, wanted)
    if run.rank == 0:
        (run.folder / "partition.json").write_text(plan.json())
    return plan


def check_batchnorm(run: Run, model: nn.Module) -> None:
    """torch's BatchNorm needs more than one value a channel, and says so only in the middle of a step."""
    if run.config.microbatch > 1 or not any(isinstance(m, _BatchNorm) for m in model.modules()):
        return
    raise ConfigError(
        f"microbatches={run.config.microbatches}: leaves one sample a micro-batch, and BatchNorm needs "
        f"several; choose microbatches={max(1, run.config.worker_batch // 2)} or fewer"
    )

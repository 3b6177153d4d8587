"""Divide a whole model's layers among the ranks of its copy, and prove that it still computes the same."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from src.compat.alike_ranks import others_are_there
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.tensor import finding, plan, proof
from src.runtime.torch.tensor.group import AXIS, MeshTensorGroup
from src.runtime.torch.tensor.plan import Plan

DRAWS = (
    "note: what is drawn at random between split layers, as masks of dropout, is each worker's own: another "
    "draw of the same kind than one device's"
)


class Division(NamedTuple):
    """A rank's parts of a model.

    Attributes:
        group: the ranks that share the model.
        plan: by which its layers are split.
        shown: a text on that for the person who waits.
    """

    group: MeshTensorGroup
    plan: Plan
    shown: str


def divide(
    context: RankContext,
    model: nn.Module,
    mesh: DeviceMesh,
    recorder: Recorder,
    device: torch.device,
    *,
    traced: bool = False,
) -> Division:
    """Keep this rank's parts of a model's layers, in place; all ranks call this function.

    Args:
        context: the rank's context.
        model: the whole seeded model, on `device`.
        mesh: of the run.
        recorder: the rank's recorder.
        device: the rank's device.
        traced: whether the model will be traced.

    Raises:
        ConfigError: where there is no plan of the model, or the split model computes something else.
    """
    found = finding.find(context, model, device)
    shown = found.show(model)
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    group = MeshTensorGroup(mesh[AXIS], recorder, traced=traced)
    if others_are_there():
        expected = proof.steps(context, model, device)
        plan.parallelize(model, found, group)
        proof.prove(context, model, expected, found, group, device)
    else:
        plan.parallelize(model, found, group)
        group.region.watches = False
    return Division(group, found, "\n".join([shown, *([DRAWS] if group.region.draws else [])]))

"""Gather a tensor that ranks hold in shards (a DTensor), or fill this rank's shard of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from src.runtime.torch import update_rule


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, in the same memory; another tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor of any shape, gathered where ranks hold shards: all of them then call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def fill(tensor: Tensor, source: Tensor) -> None:
    """Copy a whole tensor `source` into `tensor` of its shape, of which this rank may have a shard."""
    if not isinstance(tensor, DTensor):
        tensor.copy_(source)
        return
    # Every rank has the source: nothing is sent.
    shard = distribute_tensor(
        source.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None
    )
    local(tensor).copy_(shard.to_local())


def is_split(tensor: Tensor) -> bool:
    """Return whether this rank has a part of a tensor that no other rank has."""
    return isinstance(tensor, DTensor) and not all(each.is_replicate() for each in tensor.placements)


def apart(parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return a group of the parameters that are DTensors and one of others, or either if all are of a kind.

    On a GPU torch's optimizers update all parameters of a group at once, and mix no kinds.
    """
    kinds = ([each for each in parameters if isinstance(each, DTensor) == shared] for shared in (True, False))
    return [{"params": kind} for kind in kinds if kind]


@torch.no_grad()
def clip(
    parameters: Iterable[Tensor],
    limit: float,
    total: Callable[[Tensor], Tensor],
    counts: Callable[[Tensor], bool],
) -> None:
    """Clip, as `update_rule.clip` does, the gradients of parameters of which this rank may have shards.

    Whether a parameter's gradient `counts` is asked of the parameter, not of the shard.
    """
    own, counted = [], set()
    for parameter in parameters:
        if parameter.grad is not None:
            part = local(parameter.detach())
            part.grad = local(parameter.grad)
            own.append(part)
            if counts(parameter):
                counted.add(id(part))
    update_rule.clip(own, limit, total, lambda part: id(part) in counted)

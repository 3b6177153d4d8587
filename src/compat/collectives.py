"""Wrap what torch knows of its collective operations, which is private: their groups and their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops

# Parts of operations' names, and what is exchanged.
KINDS = {
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
}
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
WAIT, UNKNOWN = "wait", "unknown"


class Collective(NamedTuple):
    """A collective operation: what it does, bytes of the whole tensor, its ranks, how far these are apart."""

    kind: str
    size: float
    ranks: int
    stride: int


def collective_of(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Collective | None:
    """Return the collective operation that `func` is, `None` for another operation.

    Args:
        func, args, kwargs: as a mode is given them.
        result: what it has returned.
    """
    if func not in collective_ops:
        return Collective(UNKNOWN, 0.0, 2, 1) if func.namespace in NAMESPACES else None
    if func in sync_ops:
        return Collective(WAIT, 0.0, 1, 1)
    name = str(func)
    kind = next((known for part, known in KINDS.items() if part in name), UNKNOWN)
    try:
        ranks = dist.get_process_group_ranks(CollectiveOp.get_process_group(func, args))
        size = float(CollectiveOp.get_comm_tensor_size(func, result, args, kwargs))
    except TypeError:
        # There are some of which torch doesn't know the size.
        return Collective(UNKNOWN, 0.0, 2, 1)
    if func is torch.ops.c10d.allgather_.default:
        size = float(CollectiveOp.sum_tensors(args[0]))
    return Collective(kind, size, len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 1)

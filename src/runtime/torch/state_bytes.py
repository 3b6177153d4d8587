"""Count the bytes of what a rank holds of a model: its weights, their gradients and the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from src.measure.rank_record import RankRecord
from src.runtime.torch import shards


def facts(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> RankRecord:
    """Return the bytes of a rank's tensors after a step, for its record; of shards its own count alone.

    Args:
        module: the rank's model, or its part of the model.
        optimizers: those of its parameters.
    """
    parameters = list(module.parameters())
    states = [
        value
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    return {
        "weights_bytes": _bytes(parameters),
        "gradients_bytes": _bytes(each.grad for each in parameters if each.grad is not None),
        "optimizer_bytes": _bytes(states),
    }


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(_size(shards.local(each.detach())) for each in tensors)


def _size(tensor: Tensor) -> int:
    if tensor.layout is not torch.sparse_coo:
        return tensor.nbytes
    # A sparse gradient, as an embedding's may be.
    whole = tensor.coalesce()
    return whole.indices().nbytes + whole.values().nbytes

"""Wrap private parts of torch: BatchNorm's base, tensors without data, ids of storages, graphs under DDP."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.parallel import DistributedDataParallel

__all__ = ["BatchNorm", "FakeTensorMode", "as_in_ddp", "has_batch_statistics", "storage_id"]


def has_batch_statistics(model: nn.Module) -> bool:
    """Return whether some layer of `model` normalises by statistics of its batch."""
    return any(isinstance(layer, BatchNorm) for layer in model.modules())


def as_in_ddp(model: nn.Module | None) -> AbstractContextManager[None]:
    """Have torch's compiler divide graphs within the block as it does in a forward pass of `model` under DDP.

    It makes one graph of each bucket of gradients. Nothing changes where `model` isn't wrapped.
    """
    if not isinstance(model, DistributedDataParallel):
        return contextlib.nullcontext()
    return model._inside_ddp_forward()


def storage_id(storage: torch.UntypedStorage) -> int:
    """Return a number that tensors in the same memory share, even those without data."""
    return storage._cdata

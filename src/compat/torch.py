"""Wrap private parts of torch: BatchNorm's base, tensors without data, and ids of storages."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

__all__ = ["BatchNorm", "FakeTensorMode", "has_batch_statistics", "storage_id"]


def has_batch_statistics(model: nn.Module) -> bool:
    """Return whether some layer of `model` normalises by statistics of its batch."""
    return any(isinstance(layer, BatchNorm) for layer in model.modules())


def storage_id(storage: torch.UntypedStorage) -> int:
    """Return a number that tensors in the same memory share, even those without data."""
    return storage._cdata

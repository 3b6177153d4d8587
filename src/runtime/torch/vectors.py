"""Read and write parameters as one vector, whatever their memory layout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def to_vector(parameters: Sequence[Tensor]) -> Tensor:
    """Copy parameters into a vector [elements], one after the other."""
    return torch.cat([parameter.reshape(-1) for parameter in parameters])


@torch.no_grad()
def from_vector(values: Tensor, parameters: Sequence[Tensor]) -> None:
    """Set parameters from a vector [elements], as `to_vector` makes one."""
    parts = values.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.copy_(part.view(parameter.shape))

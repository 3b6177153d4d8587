"""Turn features of queries and keys by their positions (RoPE, Su 2021): products depend on distances."""

from __future__ import annotations

import torch
from torch import Tensor

# Angles are its negative powers (section 3.2.2).
BASE = 10_000.0


def rotations(length: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of rotary positions, each [length, head_width / 2].

    The pair i of features, from 0, is turned by m * 10000**(-2i / head_width) at position m (equation 15).
    The tables are worked out in float64, and have torch's default dtype.
    """
    powers = torch.arange(0, head_width, 2, dtype=torch.float64) / head_width
    angles = torch.outer(torch.arange(length, dtype=torch.float64), BASE**-powers)
    return angles.cos().to(torch.get_default_dtype()), angles.sin().to(torch.get_default_dtype())


def rotate(values: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair of neighbouring features of heads [batch, heads, length, head_width] by its angle.

    The tables are those of `rotations`, of as many positions or more.
    """
    # Here, and not once for all layers: stages then have the tables, and needn't pass them on.
    length = values.shape[-2]
    cosines, sines = cosines[:length], sines[:length]
    first, second = values.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((first * cosines - second * sines, second * cosines + first * sines), -1)
    return turned.flatten(-2).to(values.dtype)

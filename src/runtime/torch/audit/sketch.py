"""Sketch tensors: a few numbers by which two runs' tensors are told apart, and by how much.

A sketch is linear, so that those of the parts of a sum add up to that of the sum. It is that of Alon, Matias
and Szegedy (1999, The space complexity of approximating the frequency moments, 2.2), one a piece of the
tensor: each value gets a random sign, and each of `PIECES` pieces of consecutive values is summed up. The
squared norm of a difference of sketches is on average that of the tensors' difference, and exactly that where
a piece has one value. Of whole numbers and truth values, whose differences may cancel, one more number tells
whether they are equal: their sum by random weights, which two different tensors share with probability 0.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from src.runtime.torch.shards import whole

PIECES = 64


def sketch(tensor: Tensor) -> np.ndarray:
    """Return the sketch of a tensor of any shape and type, float64 [PIECES + 1]; torch draws nothing.

    Of a tensor that ranks hold in shards all of them call this function.
    """
    values = whole(tensor.detach())
    if values.layout is not torch.strided:
        values = values.to_dense()
    if values.is_complex():
        values = torch.view_as_real(values)
    exact = not values.is_floating_point()
    values = values.reshape(-1).to("cpu", torch.float64)
    if len(values) <= PIECES:
        return np.pad(values.numpy(), (0, PIECES + 1 - len(values)))
    signed = values.numpy() * _signs(len(values))
    starts = np.arange(PIECES) * len(signed) // PIECES
    told = float(values.numpy() @ _weights(len(values))) if exact else 0.0
    return np.append(np.add.reduceat(signed, starts), told)


@functools.cache
def _weights(count: int) -> np.ndarray:
    """Return a random weight for each of `count` values, the same in every process."""
    return np.random.Generator(np.random.Philox(key=count)).uniform(0.5, 1.5, count)


@functools.cache
def _signs(count: int) -> np.ndarray:
    """Return a random sign for each of `count` values, int8, the same in every process."""
    words = np.random.Philox(key=count).random_raw(-(-count // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8))[:count]
    return bits.astype(np.int8) * 2 - 1

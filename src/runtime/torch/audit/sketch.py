"""Sketch tensors: a few numbers by which two runs' tensors are told apart, and by how much.

A sketch is linear, so that those of the parts of a sum add up to that of the sum. It is that of Alon, Matias
and Szegedy (1999, The space complexity of approximating the frequency moments, 2.2), one a piece of the
tensor: each value gets a random sign, and each of `PIECES` pieces of consecutive values is summed up. The
squared norm of a difference of sketches is on average that of the tensors' difference, and exactly that where
a piece has one value. Two different tensors have the same sketch with probability 0.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

PIECES = 64


def sketch(tensor: Tensor) -> np.ndarray:
    """Return the sketch of a tensor of any shape and type, float64 [PIECES]; random numbers aren't drawn."""
    values = tensor.detach()
    if values.layout is not torch.strided:
        values = values.to_dense()
    if values.is_complex():
        values = torch.view_as_real(values)
    values = values.reshape(-1).to("cpu", torch.float64)
    if len(values) <= PIECES:
        return np.pad(values.numpy(), (0, PIECES - len(values)))
    signed = values.numpy() * _signs(len(values))
    starts = np.arange(PIECES) * len(signed) // PIECES
    return np.add.reduceat(signed, starts)


def norm(difference: np.ndarray) -> float:
    """Return the norm of the tensor that a sketch is of, or of what a difference of sketches is of."""
    return float(np.linalg.norm(difference))


@functools.cache
def _signs(count: int) -> np.ndarray:
    """Return a random sign for each of `count` values, int8, the same in every process."""
    words = np.random.Philox(key=count).random_raw(-(-count // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8))[:count]
    return bits.astype(np.int8) * 2 - 1

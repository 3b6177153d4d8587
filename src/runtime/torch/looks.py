"""Share what looks into a model before it trains have in common: how many samples, and numbers of float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# Samples by which a divided model is compared with the whole one, and the numbers that so many may have
# together, unless it's two samples: more of a large picture take longer, and show no more.
SAMPLES = 8
NUMBERS = 2**18


def few(inputs: Sequence[Tensor]) -> int:
    """Return how many of these samples [samples, ...] a comparison takes."""
    each = max(1, sum(tensor[0].numel() for tensor in inputs))
    return min(len(inputs[0]), SAMPLES, max(2, NUMBERS // each))


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Have torch make floating-point tensors of float64 within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

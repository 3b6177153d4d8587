"""Write a gradient as the arrays of a push, whole or compressed, and read it at the server.

none           the gradient
fp16, bf16     the gradient in half precision; numpy knows no bf16, whose bits travel as whole numbers
topk           indices within the server's part (int32), and the values there; what a worker doesn't send it
               keeps for later pushes (`src/runtime/torch/compression/topk.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from src.config import Config
from src.runtime.common.messages import Head, WrongMessage
from src.runtime.torch.compression.options import Compression
from src.runtime.torch.compression.topk import TopK

INDEX = "int32"
# The element type by which the bits of a compressed gradient travel.
HALVES = {"fp16": "float16", "bf16": "int16"}
# Type and shape of an array.
Layout = tuple[str, tuple[int, ...]]
# Returns the arrays that are pushed to the server with a part of the parameters.
Parts = Callable[[slice], list[np.ndarray]]


def compressor(config: Config) -> Callable[[Tensor], Parts]:
    """Return the function by which a worker compresses a gradient [elements], by `strategy.compression`."""
    options = Compression.of(config)
    if options.compression == "fp16":
        return lambda gradient: _of(gradient.half().numpy())
    if options.compression == "bf16":
        return lambda gradient: _of(gradient.bfloat16().view(torch.int16).numpy())
    if options.compression == "topk":
        chosen = TopK(options.compression_ratio, accumulated_momentum(config))
        return lambda gradient: _sparse(*chosen.choose("gradient", gradient))
    return whole


def whole(gradient: Tensor) -> Parts:
    """Write a gradient [elements] as it is."""
    return _of(gradient.numpy())


def _of(flat: np.ndarray) -> Parts:
    return lambda part: [flat[part]]


def _sparse(indices: Tensor, values: Tensor) -> Parts:
    def of(part: slice) -> list[np.ndarray]:
        inside = (indices >= part.start) & (indices < part.stop)
        return [(indices[inside] - part.start).int().numpy(), values[inside].numpy()]

    return of


def accumulated_momentum(config: Config) -> float:
    """Return the momentum that workers accumulate instead of the servers: under `topk`, of SGD."""
    downpour = config.strategy.get("mode") == "downpour"
    if Compression.of(config).compression != "topk" or downpour:
        return 0.0
    momentum: float = config.optimizer["momentum"]
    return momentum


def without_accumulated(config: Config, optimizer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the servers' `optimizer` without the momentum that workers accumulate."""
    return {**optimizer, "momentum": 0.0} if accumulated_momentum(config) else optimizer


def pushed_bytes(config: Config, elements: int, element_bytes: int) -> int:
    """Return the bytes of all arrays of a push of so many elements of so many bytes."""
    options = Compression.of(config)
    if options.compression in HALVES:
        return elements * np.dtype(HALVES[options.compression]).itemsize
    if options.compression == "topk":
        count = TopK(options.compression_ratio, 0.0).count(elements)
        return count * (np.dtype(INDEX).itemsize + element_bytes)
    return elements * element_bytes


def examine(name: str, head: Head, layout: Layout) -> None:
    """Raise `WrongMessage` unless a push has the arrays of a gradient that is compressed by `name`.

    `layout` is that of the server's parameters.
    """
    dtype, shape = layout
    if name == "topk":
        fits = len(head.arrays) == 2 and head.arrays[0][0] == INDEX and head.arrays[1][0] == dtype
        shapes = [array[1] for array in head.arrays]
        fits = fits and shapes[0] == shapes[1] and len(shapes[0]) == 1 and shapes[0][0] <= shape[0]
    else:
        fits = head.arrays == ((HALVES.get(name, dtype), shape),)
    if not fits:
        raise WrongMessage(f"push with arrays of {[shape for _, shape in head.arrays][:3]}")


def gradient_of(name: str, arrays: Sequence[np.ndarray], layout: Layout) -> Tensor:
    """Return the gradient [elements] of a push whose arrays `examine` has let pass.

    Raises:
        WrongMessage: for an index that is none.
    """
    dtype, (elements,) = layout
    kind: torch.dtype = getattr(torch, dtype)
    if name == "topk":
        indices = torch.from_numpy(arrays[0]).long()
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < elements:
            raise WrongMessage("a push of elements that aren't there")
        return torch.zeros(elements, dtype=kind).index_put_((indices,), torch.from_numpy(arrays[1]))
    flat = torch.from_numpy(arrays[0])
    return (flat.view(torch.bfloat16) if name == "bf16" else flat).to(kind)

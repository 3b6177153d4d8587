"""Have a CPU's torch run a step by operations that a GPU has: where a CPU takes several, a GPU takes one.

Looks at steps run on tensors without data, so that what an operation computes doesn't matter, but what it
reads, writes and keeps does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


def dropout(inputs: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop features by one operation, which keeps a mask of a byte each."""
    if not training or not p:
        return inputs
    found: Tensor = torch.native_dropout(inputs, p, True)[0]
    return found


def rms_norm(
    inputs: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Normalise by one operation; that by mean and variance reads, writes and keeps as much."""
    return aten.layer_norm.default(inputs, list(normalized_shape), weight, None, eps or 1e-5)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """Attend by one operation, with dropout, too."""
    found: Tensor = aten.scaled_dot_product_attention.default(
        query, key, value, attn_mask, 0.0, is_causal, **options
    )
    return found


def multi_head_attention(*args: Any, **kwargs: Any) -> Any:
    """Attend in several heads, as torch does, by a GPU's operations."""
    own = {"scaled_dot_product_attention": attention, "dropout": dropout}
    known = {name: getattr(functional, name) for name in own}
    # It calls them by name, within a function in which the mode is off.
    for name, function in own.items():
        setattr(functional, name, function)
    try:
        return functional.multi_head_attention_forward(*args, **kwargs)
    finally:
        for name, function in known.items():
            setattr(functional, name, function)


FUNCTIONS: Mapping[Any, Callable[..., Tensor]] = {
    functional.dropout: dropout,
    torch.dropout: lambda inputs, p, train: dropout(inputs, p, train),
    functional.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    functional.scaled_dot_product_attention: attention,
    functional.multi_head_attention_forward: multi_head_attention,
}
# As exported graphs call them.
OPERATORS: Mapping[Any, Callable[..., Tensor]] = {
    aten.dropout.default: lambda inputs, p, train: dropout(inputs, p, train),
    aten.rms_norm.default: rms_norm,
    aten.scaled_dot_product_attention.default: attention,
}


class GpuOperators(TorchFunctionMode):
    """A mode in which models call a GPU's operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, or what a GPU has in its place."""
        return FUNCTIONS.get(func, func)(*args, **(kwargs or {}))


class GpuInterpreter(fx.Interpreter):
    """An interpreter of a graph that calls a GPU's operations."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call a node's function, or what a GPU has in its place."""
        return super().call_function(OPERATORS.get(target, target), args, kwargs)

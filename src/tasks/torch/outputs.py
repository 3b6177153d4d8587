"""Run a torch model in its precision, and read its outputs in whatever form it returns them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

# A task takes these of a mapping, or of an object's attributes, where there are logits; in this order.
NAMED = ("logits", "penalty")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Compute in a run's `precision` on `device` within the block, as Lightning does in training.

    There is no cache of weights in bf16. A model is compiled anew where this differs between two calls, the
    cache of a disabled autocast included.
    """
    if precision != "bf16":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Have a model's buffers, and torch's random numbers, be after the block what they are before it."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    with torch.random.fork_rng(devices=[0] if on_gpu else []):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in before:
                    buffer.copy_(value)


def model_outputs(returned: Any) -> tuple[Tensor, ...]:
    """Return the tensors that a model has returned, as a task takes them.

    These are a tensor itself; the tensors of a list or a tuple, nested ones included; of a mapping or an
    object with `logits` these, then its `penalty` if it has one; of another mapping all its tensors.

    Raises:
        TypeError: where there is no tensor among them.
    """
    if found := _tensors(returned):
        return found
    raise TypeError(f"the model returned {type(returned).__name__}, which holds no tensor")


def _tensors(returned: Any) -> tuple[Tensor, ...]:
    if isinstance(returned, Tensor):
        return (returned,)
    if isinstance(returned, Mapping) and "logits" not in returned:
        returned = tuple(returned.values())
    elif isinstance(returned, Mapping):
        returned = tuple(returned.get(name) for name in NAMED)
    elif hasattr(returned, "logits"):
        returned = tuple(getattr(returned, name, None) for name in NAMED)
    if not isinstance(returned, list | tuple):
        return ()
    return tuple(tensor for item in returned for tensor in _tensors(item))

"""Run a torch model in its precision, and read its outputs in whatever form it returns them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from src.config import ConfigError

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


def logits_and_penalty(returned: Any, output: str | int | None) -> tuple[Tensor, ...]:
    """Return the logits among what a model has returned, and its `penalty` where something has that name.

    The logits are the tensor itself, the first of a list or a tuple, what has the name `logits`, or the only
    tensor. Whatever else there is, is ignored.

    Args:
        returned: what the model has returned.
        output: the name or number of the logits instead (`task.output`).

    Raises:
        ConfigError: where the logits can't be told from other tensors, or `output` names none.
        TypeError: where there is no tensor.
    """
    if isinstance(returned, Tensor):
        return (returned,)
    found = named_outputs(returned)
    if not found:
        return model_outputs(returned)
    first, name = next(iter(found)), "logits"
    if output is not None:
        name = str(output)
    elif isinstance(returned, list | tuple) or len(found) == 1:
        name = first
    if name not in found:
        wrong = f"task.output={output}: " if output is not None else ""
        names = ", ".join(found)
        raise ConfigError(f"{wrong}the model returns {names}; choose the logits by task.output={first}")
    return (found[name], found["penalty"]) if "penalty" in found and name != "penalty" else (found[name],)


def named_outputs(returned: Any) -> dict[str, Tensor]:
    """Return the tensors that a model has returned by name, those of a list or tuple by number from 0.

    A list within stands for its first tensor.
    """
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(returned, tuple) and hasattr(returned, "_fields"):
        items = zip(returned._fields, returned, strict=True)
    elif isinstance(returned, list | tuple):
        items = enumerate(returned)
    elif isinstance(returned, Mapping):
        items = returned.items()
    elif hasattr(returned, "__dict__"):
        items = vars(returned).items()
    found = {str(name): _tensors(value) for name, value in items}
    return {name: tensors[0] for name, tensors in found.items() if tensors}


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

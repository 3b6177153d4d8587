"""Read a torch model's outputs, in whatever form it returns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

# Of a mapping, or an object with attributes: what a task takes where there are logits, in this order.
NAMED = ("logits", "penalty")


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

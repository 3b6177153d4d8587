"""Find what no tracer of a forward pass sees: an own backward pass, and what Python itself does.

A graph has the operations of one forward pass. What the next one does otherwise, because Python has drawn or
counted, isn't in it.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from src.models.torch.unchanged import unchanged
from src.tasks.torch.outputs import model_outputs

# Its gradient is that of what it computes again, by definition.
RECOMPUTES = "CheckpointFunction"


def own_functions(outputs: Sequence[Tensor]) -> Counter[str]:
    """Return the autograd functions written in Python that have led to `outputs`, each with its number."""
    found: Counter[str] = Counter()
    seen: set[Any] = set()
    waiting: list[Any] = [tensor.grad_fn for tensor in outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and function.__name__ != RECOMPUTES:
            found[f"the autograd function {function.__name__}"] += 1
        waiting += [following for following, _ in node.next_functions]
    return found


@contextlib.contextmanager
def python_effects(model: nn.Module) -> Iterator[Counter[str]]:
    """Find what forward passes within the block change beside tensors; known at its end."""
    found: Counter[str] = Counter()
    before = _plain(model)
    states = (random.getstate(), repr(np.random.get_state()))
    yield found
    for name, value in _plain(model).items():
        if before.get(name) != value:
            found[f"what changes {name}"] += 1
    if states != (random.getstate(), repr(np.random.get_state())):
        found["what draws Python's or NumPy's random numbers"] += 1


def _plain(model: nn.Module) -> dict[str, object]:
    """Return the numbers and texts that modules hold, by their names in the model."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str)
    }


class TensorHooks(TorchFunctionMode):
    """Count the hooks that are registered on tensors within the block."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count what registers a hook; run everything."""
        if function in (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook):
            self.count["a hook of a tensor"] += 1
        return function(*args, **(kwargs or {}))


def of_model(model: nn.Module, inputs: Sequence[Tensor]) -> Counter[str]:
    """Return the autograd functions and hooks that a model uses for these inputs; leave it as it was."""
    with unchanged(model), TensorHooks() as hooks, torch.enable_grad():
        return own_functions(model_outputs(model(*inputs))) + hooks.count

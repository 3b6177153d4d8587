"""Find what users have written for the backward pass, which no tracer of the forward pass sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

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

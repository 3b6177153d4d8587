"""Find what no tracer of a forward pass sees: an own backward pass, and what Python itself does.

A graph has the operations of one forward pass. What the next one does otherwise, because Python has drawn or
counted, isn't in it.
"""

from __future__ import annotations

import contextlib
import inspect
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from src.models.torch.unchanged import unchanged
from src.partition.torch import user_lines
from src.partition.torch.user_lines import Line
from src.tasks.torch.outputs import model_outputs

HOOK, FUNCTION, CHANGES = "a hook of a tensor", "the autograd function ", "what changes "
# The gradient of what computes its operations again is theirs, by definition, and that of an operator which
# `torch.library` has registered is known to graphs, too.
RECOMPUTES, OPERATOR = "CheckpointFunction", "GeneratedBackwardFor_"


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
        if function is not None and not function.__name__.startswith((RECOMPUTES, OPERATOR)):
            found[f"{FUNCTION}{function.__name__}"] += 1
        waiting += [following for following, _ in node.next_functions]
    return found


@contextlib.contextmanager
def python_effects(model: nn.Module) -> Iterator[Counter[str]]:
    """Find what forward passes within the block change beside tensors; known at its end."""
    found: Counter[str] = Counter()
    before = _plain(model)
    states = _python_generators()
    yield found
    for name, value in _plain(model).items():
        if before.get(name) != value:
            found[f"{CHANGES}{name}"] += 1
    if states != _python_generators():
        found["what draws Python's or NumPy's random numbers"] += 1


def _python_generators() -> object:
    """Return the states of Python's and NumPy's generators of random numbers."""
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), rest


def _plain(model: nn.Module) -> dict[str, object]:
    """Return the numbers and texts that modules hold, by their names in the model."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str)
    }


class TensorHooks(TorchFunctionMode):
    """Count the hooks that are registered on tensors within the block.

    Attributes:
        count: the hooks, each kind with its number.
        line: the line of the model's code that has registered the first one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.line: Line | None = None

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count what registers a hook; run everything."""
        if function in (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook):
            self.count[HOOK] += 1
            self.line = self.line or user_lines.of_caller(inspect.currentframe())
        return function(*args, **(kwargs or {}))


def of_model(model: nn.Module, inputs: Sequence[Tensor]) -> Counter[str]:
    """Return the autograd functions and hooks that a model uses for these inputs; leave it as it was."""
    with unchanged(model), TensorHooks() as hooks, torch.enable_grad():
        return own_functions(model_outputs(model(*inputs))) + hooks.count


def line_of(name: str, model: nn.Module, inputs: Sequence[Tensor]) -> Line | None:
    """Return the line of a model's code that is to blame for what was counted as `name`, if it is found.

    The model runs once more, and is left as it was.
    """
    with unchanged(model), TensorHooks() as hooks, torch.enable_grad():

        def run() -> None:
            model(*inputs)

        if name == HOOK:
            run()
            return hooks.line
        if name.startswith(FUNCTION):
            forward = f"{name.removeprefix(FUNCTION)}.forward"
            return user_lines.of_call(run, lambda frame: frame.f_code.co_qualname.endswith(forward))
        if name.startswith(CHANGES):
            path, _, attribute = name.removeprefix(CHANGES).rpartition(".")
            held = vars(model.get_submodule(path))
            return user_lines.of_change(run, lambda: held.get(attribute))
        return user_lines.of_change(run, _python_generators)

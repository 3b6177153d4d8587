"""Find out by a look which modules of a model can be gathered by themselves.

A module's parameters are there from its call to its end. So all that uses them must be within its call, and
what it returns must show `fully_shard` where the backward pass comes back to it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from src.compat.torch import tree_leaves
from src.models.torch.unchanged import evaluating, unchanged
from src.tasks.torch.outputs import autocast


class _Uses(TorchFunctionMode):
    """A record of the modules within whose calls each parameter is used."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.within: dict[int, set[str]] = {}
        self.calls: Counter[str] = Counter()
        self.hidden: set[str] = set()
        self._active: list[str] = []
        self._parameters = {id(parameter) for parameter in model.parameters()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        used = [leaf for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._parameters]
        # A look at the shape or type of a parameter needs none of its values.
        if used and any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            for leaf in used:
                self.within[id(leaf)] = self.within.get(id(leaf), {*self._active}) & {*self._active}
        return result

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch the model's calls within the block."""

        def begin(name: str) -> Callable[..., None]:
            def note(*_: Any) -> None:
                self._active.append(name)
                self.calls[name] += 1

            return note

        def end(name: str) -> Callable[..., None]:
            def note(_: nn.Module, __: Any, returned: Any) -> None:
                self._active.remove(name)
                shown = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]
                if torch.is_grad_enabled() and not any(leaf.requires_grad for leaf in shown):
                    self.hidden.add(name)

            return note

        handles = []
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                # It takes no hooks, and shows nobody what it uses.
                continue
            handles.append(module.register_forward_pre_hook(begin(name), prepend=True))
            handles.append(module.register_forward_hook(end(name)))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()


def gatherable(
    model: nn.Module, run: Callable[[], Any], device: torch.device, *, precision: str = "fp32"
) -> set[str]:
    """Return the names of the modules whose parameters can be gathered for their calls alone.

    Each is called once in a training pass and once in an evaluation, all of its parameters are used there and
    nowhere else, and no module outside of it has one of them, too. The model is left as it was.

    Args:
        model: the whole model.
        run: calls the model with a few samples on `device`.
        device: the model's device.
        precision: that of the training, `fp32` or `bf16`.
    """
    training, evaluation = _Uses(model), _Uses(model)
    with unchanged(model), training.watching(model), torch.enable_grad(), autocast(precision, device):
        run()
    with evaluating(model), evaluation.watching(model), autocast(precision, device):
        run()
    holders: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            holders.setdefault(id(parameter), []).append(name)

    def fits(name: str, module: nn.Module) -> bool:
        inside = f"{name}." if name else ""
        return (
            training.calls[name] == evaluation.calls[name] == 1
            and name not in training.hidden
            and all(
                name in training.within.get(id(parameter), ())
                and name in evaluation.within.get(id(parameter), {name})
                and all(holder == name or holder.startswith(inside) for holder in holders[id(parameter)])
                for parameter in module.parameters()
            )
        )

    return {name for name, module in model.named_modules() if fits(name, module)}

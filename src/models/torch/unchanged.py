"""Run a user's model in another mode, or for a look at it, and leave it as it was."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

# Containers that a module may hold, whose contents are put back.
CONTAINERS = (dict, list, set, deque)
# How these libraries change modes leaves weights alone.
LIBRARIES = ("torch", "transformers", "torchmetrics", "pytorch_lightning", "lightning")


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have a model evaluate within the block, without gradients; then it trains on as if it hadn't.

    Each module has its own mode again (an author may have frozen some), and its buffers and state; its
    weights, too, where changing modes is its own affair: LoRA's layers merge theirs to evaluate.
    """
    with unchanged(model, weights=_changes_modes(model)), torch.no_grad():
        model.eval()
        yield


def _changes_modes(model: nn.Module) -> bool:
    """Return whether some module has its author's own way to change modes, which may change weights."""
    kinds = {type(module) for module in model.modules()}
    given = {getattr(method, "__module__", "") or "" for kind in kinds for method in (kind.train, kind.eval)}
    return any(name.partition(".")[0] not in LIBRARIES for name in given)


@contextlib.contextmanager
def unchanged(model: nn.Module, *, weights: bool = True) -> Iterator[None]:
    """Have a model, and all generators of random numbers, be after the block what they are before it.

    Those are torch's, NumPy's and Python's own. Put back are parameters and buffers, those that were replaced
    by others included, each module's mode, and whatever else a module holds, but for what further objects of
    the user's hold in turn. Gradients are as before, and of those that there were, the values aren't put
    back. What isn't initialized yet stays as the block leaves it; so do parameters without `weights`, and no
    copy of them is made.
    """
    modules = [(module, dict(vars(module))) for module in model.modules()]
    containers = [
        (value, _copied(value))
        for _, held in modules
        for value in held.values()
        if isinstance(value, CONTAINERS)
    ]
    with _same_random_numbers(on_gpu=any(parameter.is_cuda for parameter in model.parameters())):
        tensors = {
            id(tensor): tensor
            for tensor in _tensors(model)
            if weights or not isinstance(tensor, nn.Parameter)
        }
        values = [(tensor, tensor.detach().clone(), tensor.grad) for tensor in tensors.values()]
        try:
            yield
        finally:
            for module, held in modules:
                _put_back(vars(module), held)
            for container, content in containers:
                _refill(container, content)
            with torch.no_grad():
                for tensor, value, gradient in values:
                    # An expanded tensor is written by nobody.
                    if not any(
                        size > 1 and not stride
                        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
                    ):
                        tensor.copy_(value)
                    if tensor.is_leaf:
                        tensor.grad = gradient


def _put_back(attributes: dict[str, Any], held: dict[str, Any]) -> None:
    """Have a module's `attributes` be those that it `held`; what is the same isn't touched."""
    for name in attributes.keys() - held.keys():
        del attributes[name]
    for name, value in held.items():
        if name not in attributes or attributes[name] is not value:
            attributes[name] = value


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    """Return the parameters, the buffers and the further tensors that modules hold."""
    for module in model.modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False), *vars(module).values()]
        yield from (tensor for tensor in own if isinstance(tensor, Tensor) and not is_lazy(tensor))


def _copied(container: Any) -> list[Any]:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _refill(container: Any, content: list[Any]) -> None:
    """Have a container hold what it held; what is the same isn't touched. Tensors are compared as objects."""
    held = _copied(container)
    if isinstance(container, dict):
        same = [(key, id(value)) for key, value in held] == [(key, id(value)) for key, value in content]
    else:
        same = [*map(id, held)] == [*map(id, content)]
    if same:
        return
    container.clear()
    if isinstance(container, dict | set):
        container.update(content)
    else:
        container.extend(content)


@contextlib.contextmanager
def _same_random_numbers(*, on_gpu: bool) -> Iterator[None]:
    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[0] if on_gpu else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)

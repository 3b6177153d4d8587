"""Trace an unmodified torch model, in training or in evaluation, into a graph that can be cut.

A model is exported (`src.partition.torch.export`). One that can't be, or that has a backward pass of its own,
which an export doesn't see, may be a chain of `nn.Sequential`: its links are kept as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from src.config import ConfigError
from src.models.torch.unchanged import unchanged
from src.partition.torch import own_functions
from src.partition.torch.export import exported
from src.partition.torch.refusal import LeftOutError, refusal
from src.partition.torch.simulation import Tensors
from src.partition.torch.traced import Select, Traced


def traced(model: nn.Module, inputs: Tensors, select: Select) -> Traced:
    """Return the graph of a model in the present modes of its modules.

    Args:
        model: the whole model, which is left as it is.
        inputs: those of as many samples as the model will see at once [samples, ...].
        select: picks the outputs among what the model returns.

    Raises:
        ConfigError: with the reason, for a model that can't be traced.
    """
    if len(inputs[0]) == 1:
        # The size of a batch stays open where it isn't 1.
        inputs = tuple(torch.cat([tensor, tensor]) for tensor in inputs)
    try:
        few = tuple(tensor[:2] for tensor in inputs)
        if own := own_functions.of_model(model, few):
            name = next(iter(own))
            raise LeftOutError(name, own_functions.line_of(name, model, few))
        return exported(model, inputs, select)
    except ConfigError:
        raise
    except Exception as error:
        if not isinstance(model, nn.Sequential) or len(inputs) > 1 or _has_hooks(model):
            raise ConfigError(refusal(model, error)) from error
    return Traced(_chain(model, inputs, select))


class Outputs(nn.Module):
    """A module that picks the outputs among what a model returns."""

    def __init__(self, select: Select) -> None:
        super().__init__()
        self.select = select

    def forward(self, returned: Any) -> tuple[Tensor, ...]:
        """Return the outputs."""
        return self.select(returned)


def _chain(model: nn.Sequential, inputs: Tensors, select: Select) -> fx.GraphModule:
    """Return the graph of a chain, whose links are its layers."""
    holder: dict[str, Any] = {name: model.get_submodule(name) for name in _links(model)}
    graph = fx.Graph()
    value = graph.placeholder("inputs")
    for name in holder:
        value = graph.call_module(name, (value,))
    with unchanged(model), torch.no_grad():
        returned = model(*inputs)
    each = [value]
    if not isinstance(returned, Tensor):
        holder["_outputs"] = Outputs(select)
        chosen = graph.call_module("_outputs", (value,))
        each = [graph.call_function(operator.getitem, (chosen, n)) for n in range(len(select(returned)))]
    graph.output(each[0] if len(each) == 1 else tuple(each))
    module = fx.GraphModule(holder, graph)
    layer: Any
    for layer in module.modules():
        # A tensor that another process has sent isn't to be written into.
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False
    return module


def _links(model: nn.Sequential, prefix: str = "") -> Iterator[str]:
    for name, layer in model.named_children():
        if isinstance(layer, nn.Sequential) and not _has_hooks(layer):
            yield from _links(layer, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _has_hooks(module: nn.Module) -> bool:
    """Return whether a module does more than its `forward`, or that isn't torch's."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(module).forward is not nn.Sequential.forward or any(getattr(module, kind) for kind in kinds)

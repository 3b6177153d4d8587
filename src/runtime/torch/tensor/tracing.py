"""Trace a rank's parts of split layers: as plain tensors, whose places in the graph DTensors take again.

A tracer takes no DTensor. What is traced is the rank's own model, with as many heads as the rank has; its
stages hold the DTensors that the split has made, so that checkpoints, norms and records know them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx, nn
from torch.distributed.tensor import DTensor

from src.config import ConfigError
from src.runtime.torch.tensor.styles import own_part

# DTensors by the `id` of the plain parameter that has their part, in the same memory.
Split = Mapping[int, nn.Parameter]


@torch.no_grad()
def take_out(model: nn.Module) -> Split:
    """Have a split model hold plain parameters, and return the DTensors whose places they take."""
    plain: dict[int, nn.Parameter] = {}
    split: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(parameter, DTensor):
                if id(parameter) not in plain:
                    own = nn.Parameter(parameter.to_local(), requires_grad=parameter.requires_grad)
                    plain[id(parameter)] = own
                    split[id(own)] = parameter
                setattr(module, name, plain[id(parameter)])
    return split


def put_back(part: fx.GraphModule, split: Split) -> None:
    """Have a traced part of a model hold the DTensors again, and compute with what the rank has of them."""
    for node in list(part.graph.find_nodes(op="get_attr")):
        path, _, name = str(node.target).rpartition(".")
        owner = part.get_submodule(path)
        value = getattr(owner, name)
        whole = split.get(id(value))
        if whole is not None:
            setattr(owner, name, whole)
        elif not isinstance(value, DTensor):
            continue
        with part.graph.inserting_after(node):
            own = part.graph.call_function(own_part)
        node.replace_all_uses_with(own)
        own.args = (node,)
    part.recompile()


def check_traced(module: fx.GraphModule) -> None:
    """Raise `ConfigError` for a graph of layers that were taken as they are, whose draws no cut respects."""
    if any(module.graph.find_nodes(op="call_module")):
        raise ConfigError(
            "strategy.pipeline: the model can't be exported as a graph of operations, and stages of split "
            "layers are made of one; choose strategy.pipeline=1, or strategy.tensor=1"
        )

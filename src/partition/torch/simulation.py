"""Run a traced model node by node on tensors without data, to find the form of every value."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from src.compat.torch import FakeTensorMode
from src.config import ConfigError

# A model's input, or its inputs, of some samples.
Inputs = Tensor | Sequence[Tensor]


@dataclass(frozen=True)
class Value:
    """The form of a tensor between two operations, for one batch size."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        """Return how many bytes the tensor has."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def channels_last(self) -> bool:
        """Return whether the tensor lies in memory as [batch, height, width, channels]."""
        empty = torch.empty_strided(self.shape, self.stride, device="meta")
        return empty.dim() == 4 and not empty.is_contiguous() and empty.permute(0, 2, 3, 1).is_contiguous()


def tensors(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return a model's inputs as a tuple."""
    return (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)


class RunNodes(nn.Module):
    """A module that runs a graph node by node and keeps every result.

    Attributes:
        module: the graph.
        node: the node that is running, or ran last.
        results: results by node name.
        state: the tensors in the place of parameters and buffers, by name, set by `simulate`.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__()
        self.module = module
        self.node: fx.Node | None = None
        self.results: dict[str, Any] = {}
        self.state: dict[str, Tensor] = {}

    def forward(self, *inputs: Tensor) -> None:
        """Run the graph on `inputs`."""
        outer = self

        class Runner(fx.Interpreter):
            def run_node(self, node: fx.Node) -> Any:
                outer.node = node
                outer.results[node.name] = super().run_node(node)
                return outer.results[node.name]

        Runner(self.module, garbage_collect_values=False).run(*inputs)


def simulate(
    run: RunNodes,
    inputs: Inputs,
    *,
    autocast: bool = False,
    watch: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> None:
    """Run the graph of `run` on tensors without data; weights, buffers and gradients stay as they are.

    Where a layer looks at its data, the graph runs on `inputs` and copies of weights and buffers instead.
    `watch` makes the context in which each attempt runs.

    Raises:
        ConfigError: when the model doesn't run at all.
    """
    fake = FakeTensorMode()
    named = [*run.named_parameters(), *run.named_buffers()]
    given = tensors(inputs)
    bf16 = torch.autocast(given[0].device.type, torch.bfloat16, enabled=autocast)
    try:
        run.state = {name: fake.from_tensor(tensor) for name, tensor in named}
        with torch.enable_grad(), bf16, fake, watch():
            functional_call(run, run.state, tuple(fake.from_tensor(tensor) for tensor in given))
        return
    except Exception:
        run.results.clear()
    try:
        run.state = {
            name: tensor.detach().clone().requires_grad_(tensor.requires_grad) for name, tensor in named
        }
        with torch.enable_grad(), bf16, watch():
            functional_call(run, run.state, given)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"the model can't be cut: it doesn't run on images of this size ({reason})"
        ) from error


def results_of(module: fx.GraphModule, inputs: Inputs, *, autocast: bool = False) -> dict[str, Any]:
    """Return the result of every node, by name, for inputs like `inputs`."""
    run = RunNodes(module)
    simulate(run, inputs, autocast=autocast)
    return run.results


def values_of(module: fx.GraphModule, inputs: Inputs, *, autocast: bool = False) -> dict[str, Value]:
    """Return the form of each node's tensor, by name, for inputs like `inputs`."""
    return {
        name: Value(tuple(result.shape), result.stride(), result.dtype, result.requires_grad)
        for name, result in results_of(module, inputs, autocast=autocast).items()
        if isinstance(result, Tensor)
    }

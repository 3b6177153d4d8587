"""Run a traced model node by node on tensors without data, to find the form of every value."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from src.compat.torch import TensorsWithoutData, autograd_node, reached_nodes
from src.config import ConfigError
from src.models.torch.unchanged import unchanged
from src.partition.torch import user_lines
from src.partition.torch.refusal import keep_whole
from src.partition.torch.traced import Traced
from src.tasks.torch.outputs import autocast

Tensors = tuple[Tensor, ...]
# A model's input, or its inputs, of some samples.
Inputs = Tensor | Sequence[Tensor]
# Parameters and buffers by name.
State = dict[str, Tensor]
T = TypeVar("T")


@dataclass(frozen=True)
class Value:
    """The form of a tensor between two operations, for one batch size.

    Attributes:
        shape, stride, dtype: those of the tensor.
        requires_grad: whether it gets a gradient from the model's outputs.
    """

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


def tensors(inputs: Inputs) -> Tensors:
    """Return a model's inputs as a tuple."""
    return (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)


class RunNodes(nn.Module):
    """A module that runs a graph node by node and keeps every result.

    Attributes:
        module: the graph.
        node: the node that is running, or ran last.
        results: results by node name.
        made: by node name, the node of autograd's graph that made each result, if they are followed. They
            hold autograd's graph, and with it the whole model, until they are cleared.
    """

    def __init__(self, module: fx.GraphModule, *, follows: bool = False) -> None:
        super().__init__()
        self.module, self._follows = module, follows
        self.node: fx.Node | None = None
        self.results: dict[str, Any] = {}
        self.made: dict[str, Any] = {}

    def forward(self, *inputs: Tensor) -> None:
        """Run the graph on `inputs`."""
        outer = self

        class Runner(fx.Interpreter):
            def run_node(self, node: fx.Node) -> Any:
                outer.node = node
                result = outer.results[node.name] = super().run_node(node)
                if outer._follows and isinstance(result, Tensor) and result.requires_grad:
                    outer.made[node.name] = autograd_node(result)
                return result

        Runner(self.module, garbage_collect_values=False).run(*inputs)


def simulate(
    module: nn.Module, given: Sequence[Tensor], run: Callable[[State, Tensors], T], *, precision: str = "fp32"
) -> T:
    """Return what `run` returns of tensors without data; weights, buffers and gradients stay as they are.

    Where a layer looks at its data, they are copies instead.

    Args:
        module: gives the first argument of `run`: parameters and buffers by name.
        given: the second argument of `run`; the first one's device is the module's.
        run: called in the run's precision, with gradients.
        precision: `fp32` or `bf16`.
    """
    named = [*module.named_parameters(), *module.named_buffers()]

    def attempt(convert: Callable[[Tensor], Tensor], mode: AbstractContextManager[object]) -> T:
        state = {name: convert(tensor) for name, tensor in named}
        converted = tuple(convert(tensor) for tensor in given)
        with torch.enable_grad(), autocast(precision, given[0].device), mode:
            return run(state, converted)

    fake = TensorsWithoutData()
    try:
        return attempt(fake.from_tensor, fake)
    except Exception:
        return attempt(
            lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad),
            contextlib.nullcontext(),
        )


def results_of(module: fx.GraphModule, inputs: Inputs) -> dict[str, Any]:
    """Return the result of every node, by name, for inputs like `inputs`.

    Raises:
        ConfigError: when the model doesn't run at all.
    """
    return _run_nodes(module, inputs).results


def _run_nodes(
    module: fx.GraphModule, inputs: Inputs, *, precision: str = "fp32", follows: bool = False
) -> RunNodes:
    """Return what has run every node for inputs like `inputs`, and has the results.

    Raises:
        ConfigError: when the model doesn't run at all.
    """
    nodes = RunNodes(module, follows=follows)
    try:
        # Links of a chain may count their passes, or draw, in Python.
        with unchanged(module, weights=False):
            simulate(nodes, tensors(inputs), partial(functional_call, nodes), precision=precision)
    except Exception as error:
        reason, line = str(error).strip().splitlines()[0], user_lines.of_node(nodes.node)
        where = "" if line is None else f"{line}: "
        raise ConfigError(
            f"the model can't be cut: {where}what was traced doesn't run on inputs of this size ({reason}); "
            f"{keep_whole()}"
        ) from error
    return nodes


def values_of(traced: Traced, inputs: Inputs, *, precision: str = "fp32") -> dict[str, Value]:
    """Return the form of each node's tensor, by name, for inputs like `inputs`.

    Raises:
        ConfigError: where the model does something else for so many samples.
    """
    given = tensors(inputs)
    try:
        traced.check(*given)
    except AssertionError as error:
        raise ConfigError(
            f"the model can't be cut: for {len(given[0])} samples at once it runs other operations than for "
            f"another number of them ({str(error).strip()})"
        ) from error
    nodes = _run_nodes(traced.module, inputs, precision=precision, follows=True)
    wanted = _wanted(nodes, [each.name for each in traced.module.graph.output_node().all_input_nodes])
    return {
        name: Value(tuple(result.shape), result.stride(), result.dtype, name in wanted)
        for name, result in nodes.results.items()
        if isinstance(result, Tensor)
    }


def _wanted(nodes: RunNodes, outputs: Sequence[str]) -> set[str]:
    """Return the names of the values that get a gradient from any of the `outputs`.

    Others are those that are only looked at, or detached. One that has been written into may have several
    nodes of autograd's graph, not all of which are known, and counts as wanted.
    """
    last = {name: autograd_node(nodes.results[name]) for name in nodes.made}
    reached = reached_nodes([last[name] for name in outputs if name in last])
    wanted = {name for name, made in nodes.made.items() if last[name] is not made or made in reached}
    nodes.made.clear()
    return wanted

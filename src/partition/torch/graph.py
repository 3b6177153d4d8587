"""Divide a torch model into operations in order, and cut stages at any boundary between two of them.

    operations   | conv1 | bn1 | relu | maxpool | layer1.0.conv1 | ... | add | ... | fc |
    boundary     0       1     2      3         4                                       n

Every value that is computed before a boundary and read after it is live there: the block's input
beside the output of its first convolution, for one. A stage receives all values that are live at its
first boundary and gives all that are live at its last, those that it merely passes on included.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from src.compat.torch import FakeTensorMode
from src.config import ConfigError
from src.partition.model_profile import LiveTensor, ModelProfile
from src.partition.torch.trace import copy_to_users, traced


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


@dataclass(frozen=True)
class Operation:
    """A part of a model that can't be cut any further.

    It is one node of the graph, or several that share a weight or a value that is no tensor.
    """

    name: str
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Graph:
    """A traced model divided into operations.

    Boundary b lies before operation b, boundary `len(operations)` after the last operation.

    Attributes:
        module: the traced model.
        operations: its operations, in order.
        live: the nodes whose values are live at each boundary.
    """

    module: fx.GraphModule
    operations: tuple[Operation, ...]
    live: tuple[tuple[fx.Node, ...], ...]

    def values(self, inputs: Tensor, *, autocast: bool = False) -> dict[str, Value]:
        """Return the form of each node's tensor by the node's name, for inputs like `inputs`.

        The graph runs on tensors without data, if it can.
        """
        return _values(self.module, inputs, autocast)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the operations."""
        return tuple(operation.name for operation in self.operations)

    def profile(self, values: Mapping[str, Value]) -> ModelProfile:
        """Return the profile that a plan needs, for tensors of these forms."""
        crossing = tuple(
            tuple(LiveTensor(n.name, values[n.name].nbytes, values[n.name].requires_grad) for n in live)
            for live in self.live
        )
        return ModelProfile(self.names, crossing)

    def tensors(self, operation: Operation) -> list[Tensor]:
        """Return the parameters and buffers that an operation uses."""
        return [tensor for node in operation.nodes for tensor in _tensors(self.module, node)]

    def stage(self, start: int, stop: int) -> fx.GraphModule:
        """Make a module of operations `start` to `stop` - 1, between the live values of its boundaries.

        It returns a tuple of tensors, or as the last stage the model's own output.
        """
        graph = fx.Graph()
        known: dict[fx.Node, fx.Node] = {node: graph.placeholder(node.name) for node in self.live[start]}
        for operation in self.operations[start:stop]:
            for node in operation.nodes:
                known[node] = graph.node_copy(node, lambda old: known[old])
        results = [known[node] for node in self.live[stop]]
        graph.output(results[0] if stop == len(self.operations) else tuple(results))
        return fx.GraphModule(self.module, graph, f"Stage{start}To{stop}")


def operations(model: nn.Module, inputs: Tensor) -> Graph:
    """Trace a model and divide it into operations.

    `inputs` is a batch [batch, channels, height, width] of images of the size that the model will see.

    Raises:
        ConfigError: for a model that can't be cut, with the reason.
    """
    module = traced(model)
    results = _results(module, inputs)
    sizes = [
        node
        for node in module.graph.nodes
        if node.op not in ("placeholder", "output") and not _holds_tensor(results[node.name])
    ]
    copy_to_users(module.graph, sizes)
    module.recompile()
    results = _results(module, inputs)
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    answer = next(iter(reversed(module.graph.nodes))).args[0]
    if not isinstance(answer, fx.Node) or not isinstance(results[answer.name], Tensor):
        raise ConfigError("the model can't be cut: it must give one tensor of logits")
    allowed = _cuts(module, nodes, results)
    starts = [place for place in range(len(nodes)) if place == 0 or place in allowed]
    groups = [tuple(nodes[a:b]) for a, b in zip(starts, [*starts[1:], len(nodes)], strict=True)]
    live = [_live(module, nodes, place) for place in [*starts, len(nodes)]]
    return Graph(module, tuple(Operation(_name(group), group) for group in groups), tuple(live))


def _name(nodes: tuple[fx.Node, ...]) -> str:
    first = next((n for n in nodes if n.op == "call_module"), None) or next(
        (n for n in nodes if n.op != "get_attr"), nodes[0]
    )
    return str(first.target) if first.op == "call_module" else first.name


def _live(module: fx.GraphModule, nodes: list[fx.Node], place: int) -> tuple[fx.Node, ...]:
    """Return the nodes that are computed before `nodes[place]` and read from there on."""
    after = {*nodes[place:], *(node for node in module.graph.nodes if node.op == "output")}
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    return tuple(node for node in [*inputs, *nodes[:place]] if any(user in after for user in node.users))


def _cuts(module: fx.GraphModule, nodes: list[fx.Node], results: dict[str, Any]) -> set[int]:
    """Return the indices of nodes before which a cut is allowed.

    All live values are tensors there, and no weight is used on both sides.
    """
    allowed = set()
    for place in range(1, len(nodes)):
        live = _live(module, nodes, place)
        if all(isinstance(results[node.name], Tensor) and node.op != "get_attr" for node in live):
            allowed.add(place)
    uses: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        for tensor in _tensors(module, node):
            uses.setdefault(id(tensor), []).append(place)
    for places in uses.values():
        allowed -= set(range(places[0] + 1, places[-1] + 1))
    return allowed


def _tensors(module: fx.GraphModule, node: fx.Node) -> list[Tensor]:
    """Return the parameters and buffers that a node uses."""
    if node.op == "get_attr":
        parent, _, name = str(node.target).rpartition(".")
        return [getattr(module.get_submodule(parent), name)]
    if node.op != "call_module":
        return []
    layer = module.get_submodule(str(node.target))
    return [*layer.parameters(), *layer.buffers()]


def _holds_tensor(result: Any) -> bool:
    if isinstance(result, Tensor):
        return True
    if isinstance(result, dict):
        result = list(result.values())
    return isinstance(result, list | tuple) and any(_holds_tensor(item) for item in result)


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

    def forward(self, inputs: Tensor) -> None:
        """Run the graph on `inputs`."""
        outer = self

        class Runner(fx.Interpreter):
            def run_node(self, node: fx.Node) -> Any:
                outer.node = node
                outer.results[node.name] = super().run_node(node)
                return outer.results[node.name]

        Runner(self.module, garbage_collect_values=False).run(inputs)


def simulate(
    run: RunNodes,
    inputs: Tensor,
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
    bf16 = torch.autocast(inputs.device.type, torch.bfloat16, enabled=autocast)
    try:
        run.state = {name: fake.from_tensor(tensor) for name, tensor in named}
        with torch.enable_grad(), bf16, fake, watch():
            functional_call(run, run.state, (fake.from_tensor(inputs),))
        return
    except Exception:
        run.results.clear()
    try:
        run.state = {
            name: tensor.detach().clone().requires_grad_(tensor.requires_grad) for name, tensor in named
        }
        with torch.enable_grad(), bf16, watch():
            functional_call(run, run.state, (inputs,))
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"the model can't be cut: it doesn't run on images of this size ({reason})"
        ) from error


def _results(module: fx.GraphModule, inputs: Tensor, autocast: bool = False) -> dict[str, Any]:
    """Return the result of every node, by name, for inputs like `inputs`."""
    run = RunNodes(module)
    simulate(run, inputs, autocast=autocast)
    return run.results


def _values(module: fx.GraphModule, inputs: Tensor, autocast: bool) -> dict[str, Value]:
    return {
        name: Value(tuple(result.shape), result.stride(), result.dtype, result.requires_grad)
        for name, result in _results(module, inputs, autocast).items()
        if isinstance(result, Tensor)
    }

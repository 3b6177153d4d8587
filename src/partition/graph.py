"""A model as operations in order, and its stages: cut at any boundary between two operations.

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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from src.config import ConfigError
from src.partition.outline import Crossing, Outline
from src.partition.trace import copy_to_users, traced


@dataclass(frozen=True)
class Value:
    """A tensor between two operations, as it is for one batch size."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        """Bytes that crossing a boundary once takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def channels_last(self) -> bool:
        """Whether it lies in memory as [batch, height, width, channels]."""
        empty = torch.empty_strided(self.shape, self.stride, device="meta")
        return empty.dim() == 4 and not empty.is_contiguous() and empty.permute(0, 2, 3, 1).is_contiguous()


@dataclass(frozen=True)
class Operation:
    """What can't be cut any further: one node of the graph, or several that share what can't be sent."""

    name: str
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Graph:
    """A traced model; boundary b lies before operation b, boundary `len(operations)` after the last."""

    module: fx.GraphModule
    operations: tuple[Operation, ...]
    live: tuple[tuple[fx.Node, ...], ...]  # by boundary

    def values(self, inputs: Tensor, *, autocast: bool = False) -> dict[str, Value]:
        """Shapes of all tensors by node name for inputs like these; nothing is computed."""
        return _values(self.module, inputs, autocast)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the operations."""
        return tuple(operation.name for operation in self.operations)

    def outline(self, values: Mapping[str, Value]) -> Outline:
        """What a plan needs to know, for tensors of these shapes."""
        crossing = tuple(
            tuple(Crossing(n.name, values[n.name].nbytes, values[n.name].requires_grad) for n in live)
            for live in self.live
        )
        return Outline(self.names, crossing)

    def tensors(self, operation: Operation) -> list[Tensor]:
        """The parameters and buffers that an operation uses."""
        return [tensor for node in operation.nodes for tensor in _tensors(self.module, node)]

    def stage(self, start: int, stop: int) -> fx.GraphModule:
        """The operations from `start` up to `stop`, as a module over the live values of its two boundaries.

        It gives a tuple, and the last stage the model's own output.
        """
        graph = fx.Graph()
        known: dict[fx.Node, fx.Node] = {node: graph.placeholder(node.name) for node in self.live[start]}
        for operation in self.operations[start:stop]:
            for node in operation.nodes:
                known[node] = graph.node_copy(node, lambda found: known[found])
        given = [known[node] for node in self.live[stop]]
        graph.output(given[0] if stop == len(self.operations) else tuple(given))
        return fx.GraphModule(self.module, graph, f"Stage{start}To{stop}")


def operations(model: nn.Module, inputs: Tensor) -> Graph:
    """Traces a model; `inputs` is a batch of images of the size that it will see.

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
    """What is computed before `nodes[place]` and read from there on."""
    after = {*nodes[place:], *(node for node in module.graph.nodes if node.op == "output")}
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    return tuple(node for node in [*inputs, *nodes[:place]] if any(user in after for user in node.users))


def _cuts(module: fx.GraphModule, nodes: list[fx.Node], results: dict[str, Any]) -> set[int]:
    """Places where all that is live is a tensor, and no weight is used on both sides."""
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
    """The parameters and buffers that a node uses."""
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
    """Runs a graph node by node, keeps what each gave, and says in `node` where it is."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__()
        self.module = module
        self.node: fx.Node | None = None
        self.results: dict[str, Any] = {}
        self.state: dict[str, Tensor] = {}

    def forward(self, inputs: Tensor) -> None:
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
    """Runs the graph on tensors without data; weights, buffers and their gradients are left as they are.

    A layer that looks at its data can't do without: then copies of weights and buffers are used.
    `watch` makes what is around either attempt.

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
    """What every node gives for such inputs."""
    run = RunNodes(module)
    simulate(run, inputs, autocast=autocast)
    return run.results


def _values(module: fx.GraphModule, inputs: Tensor, autocast: bool) -> dict[str, Value]:
    return {
        name: Value(tuple(result.shape), result.stride(), result.dtype, result.requires_grad)
        for name, result in _results(module, inputs, autocast).items()
        if isinstance(result, Tensor)
    }

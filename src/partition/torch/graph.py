"""Divide a torch model into operations in order, and cut stages at any boundary between two of them.

    operations   | conv1 | bn1 | relu | maxpool | layer1.0.conv1 | ... | add | ... | fc |
    boundary     0       1     2      3         4                                       n

Every value that is computed before a boundary and read after it is live there: the block's input
beside the output of its first convolution, for one. A stage receives all values that are live at its
first boundary and gives all that are live at its last, those that it merely passes on included.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from src.config import ConfigError
from src.partition.model_profile import LiveTensor, ModelProfile
from src.partition.torch.simulation import Inputs, Value, results_of, tensors, values_of
from src.partition.torch.trace import copy_to_users, traced
from src.tasks.torch.outputs import model_outputs


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

    def values(self, inputs: Inputs, *, precision: str = "fp32") -> dict[str, Value]:
        """Return the form of each node's tensor by the node's name, for inputs like `inputs`.

        The graph runs on tensors without data, if it can.
        """
        return values_of(self.module, inputs, precision=precision)

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

        It returns a tuple of tensors; as the last stage the model's outputs, or its only one.
        """
        graph = fx.Graph()
        known: dict[fx.Node, fx.Node] = {node: graph.placeholder(node.name) for node in self.live[start]}
        for operation in self.operations[start:stop]:
            for node in operation.nodes:
                known[node] = graph.node_copy(node, lambda old: known[old])
        results = [known[node] for node in self.live[stop]]
        only = stop == len(self.operations) and len(results) == 1
        graph.output(results[0] if only else tuple(results))
        return fx.GraphModule(self.module, graph, f"Stage{start}To{stop}")


def operations(model: nn.Module, inputs: Inputs) -> Graph:
    """Trace a model and divide it into operations.

    `inputs` are of samples like those that the model will see: images [batch, channels, height, width].

    Raises:
        ConfigError: for a model that can't be cut, with the reason.
    """
    module = traced(model, len(tensors(inputs)))
    results = results_of(module, inputs)
    sizes = [
        node
        for node in module.graph.nodes
        if node.op not in ("placeholder", "output") and not _holds_tensor(results[node.name])
    ]
    copy_to_users(module.graph, sizes)
    module.recompile()
    results = results_of(module, inputs)
    if _name_outputs(module.graph, results):
        module.recompile()
        results = results_of(module, inputs)
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    allowed = _cuts(module, nodes, results)
    starts = [place for place in range(len(nodes)) if place == 0 or place in allowed]
    groups = [tuple(nodes[a:b]) for a, b in zip(starts, [*starts[1:], len(nodes)], strict=True)]
    live = [_live(module, nodes, place) for place in [*starts, len(nodes)]]
    return Graph(module, tuple(Operation(_name(group), group) for group in groups), tuple(live))


def _name_outputs(graph: fx.Graph, results: Mapping[str, Any]) -> bool:
    """Have the graph return its output, if that is a tensor, or else a tuple of nodes, one for each output.

    `results` are those of all nodes. The answer is whether the graph was changed.

    Raises:
        ConfigError: for a model that returns no tensor.
    """
    (output,) = (node for node in graph.nodes if node.op == "output")
    returned = output.args[0]
    if isinstance(returned, fx.Node) and isinstance(results[returned.name], Tensor):
        return False
    known = fx.node.map_arg(returned, lambda node: results.get(node.name))
    try:
        count = len(model_outputs(known))
    except TypeError as error:
        raise ConfigError(f"the model can't be cut: {error}") from error
    with graph.inserting_before(output):
        whole = graph.call_function(model_outputs, (returned,))
        each = [graph.call_function(operator.getitem, (whole, number)) for number in range(count)]
    output.args = (each[0] if count == 1 else tuple(each),)
    return True


def _name(nodes: tuple[fx.Node, ...]) -> str:
    """Return the name of a layer, or that of a function behind the name of the module that calls it."""
    first = next((n for n in nodes if n.op == "call_module"), None) or next(
        (n for n in nodes if n.op != "get_attr"), nodes[0]
    )
    if first.op == "call_module":
        return str(first.target)
    # The modules that `forward` is in, from the outermost one, by their names in the model.
    modules = [name for name in first.meta.get("nn_module_stack", {}) if name]
    return ".".join([*modules[-1:], first.name])


def _live(module: fx.GraphModule, nodes: list[fx.Node], place: int) -> tuple[fx.Node, ...]:
    """Return the nodes that are computed before `nodes[place]` and read from there on."""
    after = {*nodes[place:], *(node for node in module.graph.nodes if node.op == "output")}
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    if not place:
        # The first stage is given all inputs, whether or not the model reads them.
        return tuple(inputs)
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

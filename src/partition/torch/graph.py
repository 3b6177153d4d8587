"""Divide a torch model into operations in order, and cut stages at any boundary between two of them.

    operations   | conv1 | bn1 | relu | maxpool | layer1.0.conv1 | ... | add | ... | fc |
    boundary     0       1     2      3         4                                       n

Every value that is computed before a boundary and read after it is live there: the block's input
beside the output of its first convolution, for one. A stage receives all values that are live at its
first boundary and gives all that are live at its last, those that it merely passes on included.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import SymInt, Tensor, fx, nn

from src.partition.model_profile import LiveTensor, ModelProfile
from src.partition.torch import preferred
from src.partition.torch.export import may_view
from src.partition.torch.simulation import Inputs, Value, results_of, tensors, values_of
from src.partition.torch.trace import traced
from src.partition.torch.traced import Select, Traced, graph_module
from src.tasks.torch.outputs import model_outputs

RUNNING = ("running_mean", "running_var")


@dataclass(frozen=True)
class Operation:
    """A part of a model that can't be cut any further.

    It is one node of the graph, or several that are one layer's, or share a weight or a value that is no
    tensor.
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
        traced: the model as it was traced.
        modules: as `ModelProfile` has them.
        preferred: as `ModelProfile` has them.
    """

    module: fx.GraphModule
    operations: tuple[Operation, ...]
    live: tuple[tuple[fx.Node, ...], ...]
    traced: Traced
    modules: Mapping[str, int | None]
    preferred: tuple[int, ...] = ()

    def values(self, inputs: Inputs, *, precision: str = "fp32") -> dict[str, Value]:
        """Return the form of each node's tensor by the node's name, for inputs like `inputs`.

        The graph runs on tensors without data, if it can.

        Raises:
            ConfigError: where the model does something else for so many samples.
        """
        return values_of(self.traced, inputs, precision=precision)

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
        return ModelProfile(self.names, crossing, self.modules, self.preferred)

    def tensors(self, operation: Operation) -> list[Tensor]:
        """Return the parameters and buffers that an operation uses."""
        return [tensor for node in operation.nodes for tensor in tensors_of(self.module, node)]

    def holders(self, boundaries: Sequence[int]) -> dict[int, set[int]]:
        """Return the stages, between these boundaries, that use each parameter and buffer, by its `id`."""
        ends = [*boundaries, len(self.operations)]
        found: dict[int, set[int]] = {}
        for place, operation in enumerate(self.operations):
            stage = next(number for number, end in enumerate(ends) if place < end)
            for tensor in self.tensors(operation):
                found.setdefault(id(tensor), set()).add(stage)
        return found

    def stage(self, start: int, stop: int) -> fx.GraphModule:
        """Make a module of operations `start` to `stop` - 1, between the live values of its boundaries.

        It returns a tuple of tensors; as the last stage the model's outputs, or its only one.
        """
        graph = fx.Graph()
        results = self._copy(graph, start, stop)
        only = stop == len(self.operations) and len(results) == 1
        graph.output(results[0] if only else tuple(results))
        return graph_module(self.module, graph, f"Stage{start}To{stop}")

    def stages(self, spans: Sequence[tuple[int, int]]) -> fx.GraphModule:
        """Make a module of all the stages of `spans` (start, stop), which has their modules and tensors.

        It takes the inputs of all of them, one stage after the other, and returns a tuple of their results.
        """
        graph = fx.Graph()
        graph.output(tuple(each for span in spans for each in self._copy(graph, *span)))
        return graph_module(self.module, graph, "Stages" + "And".join(f"{a}To{b}" for a, b in spans))

    def _copy(self, graph: fx.Graph, start: int, stop: int) -> list[fx.Node]:
        """Copy operations `start` to `stop` - 1 into `graph`, behind new inputs; return their results."""
        # What crosses several boundaries is an input of several stages: a name each.
        names = [node.name if start == 0 else f"{node.name}_at_{start}" for node in self.live[start]]
        known = dict(zip(self.live[start], map(graph.placeholder, names), strict=True))
        for operation in self.operations[start:stop]:
            for node in operation.nodes:
                known[node] = graph.node_copy(node, lambda old: known[old])
        return [known[node] for node in self.live[stop]]


def operations(
    model: nn.Module, inputs: Inputs, outputs: Select = model_outputs, *, tied: str = "together"
) -> Graph:
    """Trace a model that trains and divide it into operations.

    Args:
        model: the whole model.
        inputs: those of a micro-batch like those that the model will see: images [batch, channels, height,
            width].
        outputs: picks the outputs among what the model returns.
        tied: `together` keeps all uses of a weight in one operation; `reduce` allows cuts between them.

    Raises:
        ConfigError: for a model that can't be cut, with the reason.
    """
    trained = traced(model, tensors(inputs), outputs)
    module = trained.module
    results = results_of(module, inputs)
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    lives = _lives(module, nodes)
    allowed = _cuts(module, nodes, lives, results, tied) - _pinned(nodes, trained)
    starts = [place for place in range(len(nodes)) if place == 0 or place in allowed]
    groups = [tuple(nodes[a:b]) for a, b in zip(starts, [*starts[1:], len(nodes)], strict=True)]
    live = [lives[place] for place in [*starts, len(nodes)]]
    names = _names(groups)
    named = tuple(map(Operation, names, groups))
    own = preferred.boundaries(model, names)
    return Graph(module, named, tuple(live), trained, _modules(model, groups), own)


def _modules(model: nn.Module, groups: list[tuple[fx.Node, ...]]) -> dict[str, int | None]:
    """Return for each module of a model, by its paths, the first group of nodes that has some of it."""
    found: dict[str, int] = {}
    for place, group in enumerate(groups):
        for node in filter(computes, group):
            for path in _paths(node):
                found.setdefault(path, place)
    # One module may have several paths.
    places = {id(model.get_submodule(path)): place for path, place in reversed(found.items()) if path}
    named = model.named_modules(remove_duplicate=False)
    return {path: places.get(id(module)) for path, module in named if path}


def _paths(node: fx.Node) -> set[str]:
    """Return the paths of the modules that a node runs in."""
    called = [path.partition("@")[0] for path, *_ in node.meta.get("nn_module_stack", {}).values()]
    parts = [path.split(".") for path in ([str(node.target)] if node.op == "call_module" else called)]
    # A list of modules is never called itself.
    return {".".join(each[:depth]) for each in parts for depth in range(1, len(each) + 1)}


def _pinned(nodes: list[fx.Node], trained: Traced) -> set[int]:
    """Return the indices of nodes before which no cut is allowed: within a layer, or between views."""
    place = {node: number for number, node in enumerate(nodes)}
    pinned = {
        number
        for first, last in trained.pinned
        for number in range(place.get(first, -1) + 1, place[last] + 1)
    }
    following: str | None = None
    for number in range(len(nodes) - 1, 0, -1):
        # What is read belongs to its reader.
        following = layer_of(nodes[number]) if computes(nodes[number]) else following
        if following is not None and not (
            computes(nodes[number - 1]) and layer_of(nodes[number - 1]) != following
        ):
            pinned.add(number)
    return pinned


def layer_of(node: fx.Node) -> str | None:
    """Return the name of the layer of torch's own that an operation is a part of, `None` outside of any."""
    stack = [entry for entry in node.meta.get("nn_module_stack", {}).values() if entry[0]]
    if node.op == "call_module" or not stack:
        return str(node.target) if node.op == "call_module" else None
    path, kind = stack[-1]
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return path.partition("@")[0] if name.startswith("torch.nn.") else None


def computes(node: fx.Node) -> bool:
    """Return whether a node gives a tensor of its own, and no weight, size or constant."""
    return node.op != "get_attr" and not isinstance(node.meta.get("val", Tensor), SymInt | int | float | bool)


def _names(groups: list[tuple[fx.Node, ...]]) -> list[str]:
    """Return the names of operations: of a layer, or of a function behind the module that calls it.

    Functions of a name are numbered in the model's order.
    """
    counts: Counter[str] = Counter()
    names = []
    for group in groups:
        first = next(filter(computes, group), group[0])
        if (layer := layer_of(first)) is not None:
            names.append(layer)
            continue
        function = getattr(first.target, "__name__", str(first.target)).partition(".")[0].strip("_")
        number = counts[function]
        counts[function] += 1
        modules = [path for path, *_ in first.meta.get("nn_module_stack", {}).values() if path]
        names.append(".".join([*modules[-1:], f"{function}_{number}" if number else function]))
    return names


def _lives(module: fx.GraphModule, nodes: list[fx.Node]) -> list[tuple[fx.Node, ...]]:
    """Return for each place, the end included, the nodes computed before it and read from there on."""
    places = {node: place for place, node in enumerate(nodes)}
    # The first stage is given all inputs, whether or not the model reads them.
    live = dict.fromkeys(node for node in module.graph.nodes if node.op == "placeholder")
    lives = [tuple(live)]
    for place, node in enumerate(nodes):
        live[node] = None
        # The graph's output is read at the end.
        live = {
            each: None for each in live if any(places.get(user, len(nodes)) > place for user in each.users)
        }
        lives.append(tuple(live))
    # The model's outputs are in its own order.
    lives[-1] = tuple(dict.fromkeys(module.graph.output_node().all_input_nodes))
    return lives


def _cuts(
    module: fx.GraphModule,
    nodes: list[fx.Node],
    lives: list[tuple[fx.Node, ...]],
    results: dict[str, Any],
    tied: str,
) -> set[int]:
    """Return the indices of nodes before which a cut is allowed.

    All live values are tensors there, and no weight is used on both sides, unless tied weights may be
    (`reduce`). Of a table that is only read, a buffer or a constant, each stage has its own.
    """
    allowed = set()
    for place in range(1, len(nodes)):
        if all(isinstance(results[node.name], Tensor) and node.op != "get_attr" for node in lives[place]):
            allowed.add(place)
    uses: dict[int, list[int]] = {}
    changed: set[int] = set()
    for place, node in enumerate(nodes):
        for tensor in tensors_of(module, node):
            uses.setdefault(id(tensor), []).append(place)
            kept = isinstance(tensor, nn.Parameter) and tied == "together"
            if kept or node.op != "get_attr" or not _only_read(node):
                changed.add(id(tensor))
    for tensor_id, places in uses.items():
        if tensor_id in changed:
            allowed -= set(range(places[0] + 1, places[-1] + 1))
    return allowed


def _only_read(node: fx.Node) -> bool:
    """Return whether operations write neither into a node's tensor nor into a view of it."""
    for user in node.users:
        if user.target is not operator.getitem:
            schema = getattr(user.target, "_schema", None)
            if schema is None:
                return False
            given = {argument.name: argument for argument in schema.arguments}
            named = {**dict(zip(given, user.args, strict=False)), **user.kwargs}
            holding = [given[name] for name, value in named.items() if value is node]
            # Layers with statistics write into them, of which their schemas don't tell.
            if any(
                each.name in RUNNING or (each.alias_info and each.alias_info.is_write) for each in holding
            ):
                return False
        if may_view(user) and not _only_read(user):
            return False
    return True


def tensors_of(module: fx.GraphModule, node: fx.Node) -> list[Tensor]:
    """Return the parameters and buffers that a node uses."""
    if node.op == "get_attr":
        parent, _, name = str(node.target).rpartition(".")
        value = getattr(module.get_submodule(parent), name)
        return [value] if isinstance(value, Tensor) else []
    if node.op != "call_module":
        return []
    layer = module.get_submodule(str(node.target))
    return [*layer.parameters(), *layer.buffers()]

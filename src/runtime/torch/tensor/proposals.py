"""Propose which layers to split: linear ones on both sides of what keeps features apart.

From the input of each linear layer a model's graph is followed back, through operations that compute each
feature (or head) by itself, to the outputs of other linear layers. If all that reads those values is on the
way, the layers at its begin are split by columns and the last by rows: Shoeybi 2019, section 3, of an MLP, a
gated one and attention by heads. What isn't recognised isn't proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from torch import fx, nn

from src.partition.torch.simulation import Tensors, Value, values_of
from src.partition.torch.trace import traced
from src.partition.torch.traced import Select
from src.runtime.torch.tensor.styles import COLWISE, ROWWISE

# Operations of each element by itself; tensors are broadcast.
ELEMENTWISE = {
    "relu", "gelu", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "mish", "hardswish", "softplus",
    "dropout", "neg", "contiguous", "clone", "alias", "to", "abs", "add", "sub", "mul", "div",
    "pow", "rsqrt", "sqrt", "exp", "where", "masked_fill",
}  # fmt: skip
# Operations that return several tensors, whose dimensions stand here for those of what they are made of.
PARTS = ("unbind", "chunk", "split", "split_with_sizes")


def propose(model: nn.Module, inputs: Tensors, select: Select, ranks: int) -> dict[str, str]:
    """Return how the layers of a model may be split among so many ranks, by path; there may be none.

    Args:
        model: the whole model, which trains and is left as it was.
        inputs: those of a few samples [samples, ...].
        select: picks the outputs among what the model returns.
        ranks: how many share the model.

    Raises:
        ConfigError: for a model that can't be traced, with the reason.
    """
    trace = traced(model, inputs, select)
    search = _Search(model, trace.module, values_of(trace, inputs), ranks)
    found: dict[str, str] = {}
    for node in trace.module.graph.nodes:
        words = search.pair(node)
        if words and not words.keys() & found.keys():
            found |= words
    return found


class _NotRecognised(Exception):
    """A graph in which features aren't kept apart."""


class _Search:
    def __init__(
        self, model: nn.Module, graph: fx.GraphModule, values: Mapping[str, Value], ranks: int
    ) -> None:
        self._values, self._ranks = values, ranks
        parameters = {id(each): name for name, each in model.named_parameters()}
        shared = {name for name, _ in model.named_parameters(remove_duplicate=False)} - {*parameters.values()}
        tied = {id(model.get_parameter(name)) for name in shared}
        weights: dict[str, list[fx.Node]] = {}
        for node in graph.graph.find_nodes(op="get_attr"):
            weights.setdefault(str(node.target), []).extend(node.users)
        # Layers that are called once, whose weights nothing else reads, by their nodes.
        self._layers: dict[fx.Node, str] = {}
        for name, module in model.named_modules():
            users = weights.get(f"{name}.weight", [])
            if type(module).forward is not nn.Linear.forward or len(users) != 1:
                continue
            if id(module.weight) not in tied and users[0].target.__name__ == "linear.default":  # type: ignore[union-attr]
                self._layers[users[0]] = name

    def pair(self, last: fx.Node) -> dict[str, str]:
        """Return how the layers are split that end with the node `last`; nothing if that isn't recognised."""
        if last not in self._layers:
            return {}
        try:
            between = self._between(last)
        except _NotRecognised:
            return {}
        first = [self._layers[node] for node in self._layers if node in between]
        read = {user for node in between for user in node.users if not self._reads_size(user, between[node])}
        if not first or not read <= {*between, last} or self._layers[last] in first:
            return {}
        return {**dict.fromkeys(first, COLWISE), self._layers[last]: ROWWISE}

    def _between(self, last: fx.Node) -> dict[fx.Node, int]:
        """Return the nodes from the first layers to the input of `last`, and along what each is split."""
        found: dict[fx.Node, int] = {}
        source: Any = last.args[0]
        todo = [(source, len(self._shape(source)) - 1)]
        while todo:
            node, dim = todo.pop()
            if found.setdefault(node, dim) != dim or self._shape(node)[dim] % self._ranks:
                raise _NotRecognised
            if node not in self._layers or dim != len(self._shape(node)) - 1:
                todo += [each for each in self._before(node, dim) if found.get(each[0]) != each[1]]
        return found

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        source = node.args[0] if _name(node) in PARTS else node
        if not isinstance(source, fx.Node) or source.name not in self._values:
            raise _NotRecognised
        return self._values[source.name].shape

    def _reads_size(self, node: fx.Node, dim: int) -> bool:
        return _name(node) == "sym_size" and bool(node.args[1] != dim)

    def _before(self, node: fx.Node, dim: int) -> Iterator[tuple[fx.Node, int]]:
        """Yield the inputs of an operation that are split where its output is split along `dim`."""
        name, rule = _name(node), RULES.get(_name(node))
        inputs = [each for each in node.all_input_nodes if each.name in self._values or _name(each) in PARTS]
        shapes = [self._shape(each) for each in inputs]
        if name in ELEMENTWISE:
            rule = _broadcast
        if rule is None:
            raise _NotRecognised
        places = rule(node, dim, self._shape(node), shapes)
        for each, place in zip(inputs, places, strict=True):
            if place is not None:
                yield each, place
            elif each.name not in self._values or self._values[each.name].requires_grad:
                # Its gradient would be a sum of the ranks' parts.
                raise _NotRecognised


Shape = tuple[int, ...]
Rule = Callable[[fx.Node, int, Shape, Sequence[Shape]], list[int | None]]


def _name(node: fx.Node) -> str:
    """Return the name of a node's operation, without its overload."""
    return str(getattr(node.target, "__name__", "")).partition(".")[0] if node.op == "call_function" else ""


def _broadcast(_: fx.Node, dim: int, shape: Shape, inputs: Sequence[Shape]) -> list[int | None]:
    """Align dimensions from the right; what is broadcast along the split one is whole."""
    places = [dim - len(shape) + len(each) for each in inputs]
    return [
        None if place < 0 or each[place] == 1 else place for place, each in zip(places, inputs, strict=True)
    ]


def _reshaped(_: fx.Node, dim: int, shape: Shape, inputs: Sequence[Shape]) -> list[int | None]:
    """Find the dimension that begins where the split one does: features become heads, or heads features."""
    (before,) = inputs
    for place, size in enumerate(before):
        larger, smaller = max(size, shape[dim]), min(size, shape[dim])
        if prod(before[:place]) == prod(shape[:dim]) and size > 1 and larger % smaller == 0:
            return [place]
    raise _NotRecognised


def _moved(node: fx.Node, dim: int, shape: Shape, inputs: Sequence[Shape]) -> list[int | None]:
    rank = len(shape)
    order: list[int] = list(range(rank))
    arguments: Any = node.args
    if _name(node) == "permute":
        order = [each % rank for each in arguments[1]]
    else:
        one, other = (each % rank for each in arguments[1:3])
        order[one], order[other] = other, one
    return [order[dim]]


def _added(node: fx.Node, dim: int, shape: Shape, inputs: Sequence[Shape]) -> list[int | None]:
    """Leave out the dimension that `unsqueeze` or `stack` adds."""
    added: Any = node.args[1] if len(node.args) > 1 else 0
    if added % len(shape) == dim:
        raise _NotRecognised
    return [dim - (dim > added % len(shape))] * len(inputs)


def _taken(node: fx.Node, dim: int, shape: Shape, inputs: Sequence[Shape]) -> list[int | None]:
    """Find the dimension in what is taken apart, which `unbind` takes one from."""
    parts: Any = node.args[0]
    if _name(parts) not in PARTS:
        # A block of the graph's own, as one under `no_grad`, returns several tensors.
        raise _NotRecognised
    along = _dim(parts, 0 if _name(parts) == "unbind" else 1) % len(inputs[0])
    return [dim + (dim >= along) if _name(parts) == "unbind" else dim]


def _dim(node: fx.Node, behind: int) -> int:
    """Return the dimension that an operation works along, `behind` arguments after its second one."""
    found: Any = node.args[1 + behind] if len(node.args) > 1 + behind else node.kwargs.get("dim", 0)
    return int(found)


def _along_others(behind: int) -> Rule:
    """Return the rule of operations along another dimension than the split one, which `_dim` finds."""

    def rule(node: fx.Node, dim: int, shape: Shape, inputs: Sequence[Shape]) -> list[int | None]:
        if _dim(node, behind) % len(shape) == dim:
            raise _NotRecognised
        return [dim] * len(inputs)

    return rule


def _attention(node: fx.Node, dim: int, shape: Shape, inputs: Sequence[Shape]) -> list[int | None]:
    """Split queries, keys and values by heads [samples, heads, tokens, features]; a mask is of all heads."""
    if len(shape) != 4 or dim != 1 or len(inputs) < 3:
        raise _NotRecognised
    masks = _broadcast(node, dim, shape, inputs[3:])
    return [1, 1, 1, *masks]


def _matmul(node: fx.Node, dim: int, shape: Shape, inputs: Sequence[Shape]) -> list[int | None]:
    if dim >= len(shape) - 2:
        raise _NotRecognised
    return _broadcast(node, dim, shape, inputs)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "_unsafe_view"), _reshaped),
    **dict.fromkeys(("transpose", "permute"), _moved),
    "expand": _broadcast,
    **dict.fromkeys(("unsqueeze", "stack"), _added),
    **dict.fromkeys(("slice", "softmax", "_softmax", "cat", "unbind"), _along_others(0)),
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), _along_others(1)),
    "getitem": _taken,
    "scaled_dot_product_attention": _attention,
    "matmul": _matmul,
}

"""Define what a traced model is: a graph of operations that shares the model's weights and buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

# Picks the outputs among what a model returns.
Select = Callable[[Any], tuple[Tensor, ...]]
# Operators whose effect lasts until the next call of another one, by that they begin it: no cut lies between.
SPANS: dict[Any, Any] = {}


@dataclass(frozen=True)
class Traced:
    """A model as one graph, which returns the model's output, or a tuple of several.

    Attributes:
        module: the graph, with weights and buffers of the model under the model's names.
        pinned: pairs of nodes between which there may be no cut.
        check: raises `AssertionError` for inputs of sizes for which the model would do something else.
    """

    module: fx.GraphModule
    pinned: Sequence[tuple[fx.Node, fx.Node]] = ()
    check: Callable[..., None] = lambda *inputs: None

    def allows(self, inputs: Sequence[Tensor]) -> bool:
        """Return whether the model does the same for inputs of these sizes."""
        try:
            self.check(*inputs)
        except AssertionError:
            return False
        return True


def graph_module(root: nn.Module, graph: fx.Graph, name: str = "GraphModule") -> fx.GraphModule:
    """Make a module of a graph that reads the attributes of `root`; what `root` doesn't save it doesn't."""
    module = fx.GraphModule(root, graph, name)
    for target in {str(node.target) for node in graph.find_nodes(op="get_attr")}:
        path, _, last = target.rpartition(".")
        parent, origin = module.get_submodule(path), root.get_submodule(path)
        value = getattr(parent, last)
        if isinstance(value, nn.Parameter) or not isinstance(value, Tensor):
            continue
        if last not in origin.state_dict():
            parent.register_buffer(last, value, persistent=False)
    return module


def copy_to_users(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    """Give each user of these nodes its own copy of them, right before it."""
    for node in reversed(nodes):
        for user in list(node.users):
            with graph.inserting_before(user):
                own = graph.node_copy(node)
            own.meta = dict(node.meta)
            user.replace_input_with(node, own)
        graph.erase_node(node)

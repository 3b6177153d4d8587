"""Trace an unmodified torch model into one graph of operations, and make it safe to cut.

The traced graph is corrected. Operations in place would change a tensor that was sent to another process:
they are replaced. A `training=` flag would keep its value at tracing: it follows the module's.
Sizes, shapes and weights aren't sent: each user gets its own copy of the node that gives them.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from src.config import ConfigError

# Operators that write into their first operand, and their counterparts that don't.
IN_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}


class _Children(fx.Tracer):
    """A tracer that opens `nn.Sequential` alone; other modules, which may not be traceable, stay whole."""

    def is_leaf_module(self, module: nn.Module, _: str) -> bool:
        return not isinstance(module, nn.Sequential)


class Functional(nn.Module):
    """A module that calls a function with its own `training` flag."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Call the function."""
        return self.function(*args, **kwargs, training=self.training)


def traced(model: nn.Module, inputs: int = 1) -> fx.GraphModule:
    """Trace a model with so many inputs into a graph whose operations don't change them.

    The graph shares the model's weights and buffers.

    Raises:
        ConfigError: with the reason, for a model that can't be traced.
    """
    was_training = model.training
    try:
        graphs = [_graph(model.train(mode), fx.Tracer(), inputs) for mode in (True, False)]
    except Exception as error:
        graphs = [_whole_children(model.train(mode), inputs, error) for mode in (True, False)]
    finally:
        model.train(was_training)
    module = fx.GraphModule(model, graphs[0])
    _follow_training(module, graphs[1])
    _out_of_place(module)
    _read_attributes_late(module)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return module


def _graph(model: nn.Module, tracer: fx.Tracer, inputs: int) -> fx.Graph:
    parameters = list(inspect.signature(model.forward).parameters.values())
    others = parameters[inputs:]
    defaults = {p.name: p.default for p in others if p.default is not inspect.Parameter.empty}
    graph = tracer.trace(model, concrete_args=defaults or None)
    for extra in [node for node in graph.nodes if node.op == "placeholder"][inputs:]:
        _remove(graph, extra)
    return graph


def _remove(graph: fx.Graph, extra: fx.Node) -> None:
    """Remove an argument that has a default from the graph, and the assertions that tracing adds about it."""
    reading, readers = [extra], [extra]
    while reading:
        users = [user for user in reading.pop().users if user not in readers]
        reading += users
        readers += users
    if any(node.op == "output" for node in readers):
        raise ValueError(f"it takes an input that the dataset doesn't have: {extra.target}")
    for node in sorted(readers, key=list(graph.nodes).index, reverse=True):
        graph.erase_node(node)


def _whole_children(model: nn.Module, inputs: int, first: Exception) -> fx.Graph:
    try:
        return _graph(model, _Children(), inputs)
    except Exception as error:
        reason = str(first).strip().splitlines()[0]
        raise ConfigError(
            f"the model can't be cut: torch.fx can't trace it ({reason}), and it is no chain of "
            "nn.Sequential; use a strategy that keeps it whole"
        ) from error


def _follow_training(module: fx.GraphModule, evaluated: fx.Graph) -> None:
    """Make calls follow the module's `training` where the graphs of training and evaluation differ by it."""
    pairs = list(zip(module.graph.nodes, evaluated.nodes, strict=False))
    if len(module.graph.nodes) != len(evaluated.nodes):
        raise ConfigError("the model can't be cut: it runs other operations in evaluation than in training")
    for node, other in pairs:
        if (node.op, str(node.target)) != (other.op, str(other.target)):
            raise ConfigError(
                f"the model can't be cut: it runs {node.target} in training and {other.target} in evaluation"
            )
        plain = [{k: v for k, v in one.kwargs.items() if k != "training"} for one in (node, other)]
        if str((node.args, plain[0])) != str((other.args, plain[1])):
            raise ConfigError(
                f"the model can't be cut: it calls {node.target} with other arguments in evaluation"
            )
        if node.kwargs.get("training") == other.kwargs.get("training"):
            continue
        name = f"_{node.name}"
        module.add_submodule(name, Functional(node.target))
        node.op, node.target = "call_module", name
        node.kwargs = {key: value for key, value in node.kwargs.items() if key != "training"}


def _out_of_place(module: fx.GraphModule) -> None:
    for node in module.graph.nodes:
        changed = _made_out_of_place(module, node)
        if not changed or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        # Later readers of the operand, which was changed in place, now read the result.
        later = False
        for user in module.graph.nodes:
            if later and node.args[0] in user.all_input_nodes:
                user.replace_input_with(node.args[0], node)
            later |= user is node


def _made_out_of_place(module: fx.GraphModule, node: fx.Node) -> bool:
    """Replace an operation that writes into its operand by one that doesn't; return whether it wrote."""
    if node.op == "call_module":
        layer: Any = module.get_submodule(str(node.target))
        if getattr(layer, "inplace", False) is not True:
            return False
        layer.inplace = False
        return True
    if node.op == "call_function" and node.target in IN_PLACE:
        node.target = IN_PLACE[node.target]
        return True
    if node.kwargs.get("inplace") is True:
        node.kwargs = {**node.kwargs, "inplace": False}
        return True
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if node.op not in ("call_method", "call_function") or not name.endswith("_") or name.endswith("__"):
        return False
    home = Tensor if node.op == "call_method" else torch
    if not hasattr(home, name[:-1]):
        raise ConfigError(
            f"the model can't be cut: {name} works in place and has no counterpart that doesn't"
        )
    node.target = name[:-1] if node.op == "call_method" else getattr(torch, name[:-1])
    return True


def _read_attributes_late(module: fx.GraphModule) -> None:
    """Read parameters that `forward` itself reads right before each use, in the stage that uses them."""
    copy_to_users(module.graph, [node for node in module.graph.nodes if node.op == "get_attr"])


def copy_to_users(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    """Give each user of these nodes its own copy of them, right before it."""
    for node in reversed(nodes):
        for user in list(node.users):
            with graph.inserting_before(user):
                own = graph.node_copy(node)
            own.meta = dict(node.meta)
            user.replace_input_with(node, own)
        graph.erase_node(node)

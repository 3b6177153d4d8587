"""Export an unmodified torch model as one graph of operations, and make it safe to cut.

`torch.export` runs the model's own Python on tensors without data, hooks and `no_grad` blocks included, and
writes down the operations that torch was asked for. The graph is corrected for cuts between any two of them:

    a size of the batch     would be read of the model's input, which would be sent to all stages; each user
                            reads it of a tensor at hand
    a weight                is read right before each use, in the stage that uses it
    a write into a buffer   stands at the graph's end; it is done as soon as may be
    an operation in place   would change a tensor that was sent to another process; it is replaced, or where
                            the tensor has several views, pinned to the operations that made them
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import SymInt, Tensor, fx, nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from src.compat.torch import HigherOrderOperator, storage_id
from src.models.torch.unchanged import unchanged
from src.partition.torch.simulation import Tensors, results_of
from src.partition.torch.traced import SPANS, Select, Traced, copy_to_users, graph_module
from src.tasks.torch.outputs import model_outputs

_Views = dict[int, list[fx.Node]]


def exported(model: nn.Module, inputs: Tensors, select: Select) -> Traced:
    """Export a model, in the present modes of its modules, as a graph that shares its weights and buffers.

    Whatever torch raises of a model that it can't export is raised as it is.

    Args:
        model: the whole model, which is left as it is.
        inputs: those of at least two samples [samples, ...]; the graph runs on any number of them for which
            the model does the same. That is this number alone where its Python asks for it, as by `len`.
        select: picks the outputs among what the model returns.
    """
    bound = inspect.signature(model.forward).bind(*inputs).arguments
    open_batch = {
        name: ({0: Dim.AUTO},) * len(value) if isinstance(value, tuple) else {0: Dim.AUTO}
        for name, value in bound.items()
    }
    with unchanged(model), _returning(model, select), _quiet(logging.getLogger("torch")):
        whole = torch.export.export(model, inputs, dynamic_shapes=open_batch, strict=False).module()
    assert isinstance(whole, fx.GraphModule)
    graph = _copied(whole.graph)
    _write_buffers_early(graph)
    copy_to_users(graph, [node for node in graph.nodes if node.op == "get_attr"])
    copy_to_users(graph, [node for node in graph.nodes if _is_size(node)])
    _read_sizes_at_hand(graph)
    module = graph_module(_holder(model, whole, graph), graph)
    pinned = [
        *_out_of_place(module, results_of(module, inputs)),
        *_of_open_shape(module.graph),
        *_spans(module.graph),
    ]
    graph.lint()
    module.recompile()
    return Traced(module, pinned, _guards(whole))


def load() -> None:
    """Have torch import what an export needs, which is then no part of what the model is measured to need."""
    exported(nn.Flatten(), (torch.zeros(2, 1),), model_outputs)


@contextlib.contextmanager
def _returning(model: nn.Module, select: Select) -> Iterator[None]:
    """Have a model return the selected outputs alone within the block: torch may not know what others are."""
    if isinstance(model, torch.jit.ScriptModule):
        # It has no hooks, and torch says that it can't be exported.
        yield
        return
    hook = model.register_forward_hook(lambda _, __, returned: select(returned))
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep back what is logged and printed within the block; a reason that matters is in the error, too."""
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        printed = io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _copied(whole: fx.Graph) -> fx.Graph:
    """Copy an exported graph without the check of its inputs; of several outputs it returns a tuple."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    for node in whole.nodes:
        # Checks of types hold for the types at the export; autocast changes them.
        checks = node.op == "call_module" or str(node.target).startswith("aten._assert")
        if node.op != "output" and not checks:
            known[node] = graph.node_copy(node, known.__getitem__)
    (output,) = whole.find_nodes(op="output")
    outputs = tuple(known[value] for value in output.args[0])
    graph.output(outputs[0] if len(outputs) == 1 else outputs)
    # A block without gradients may write into buffers.
    graph.eliminate_dead_code(lambda node: node.is_impure() or isinstance(node.target, HigherOrderOperator))
    return graph


def _guards(whole: fx.GraphModule) -> Callable[..., None]:
    """Return the check that inputs have sizes for which a graph is what the model computes."""
    found = [whole.get_submodule(str(node.target)) for node in whole.graph.find_nodes(op="call_module")]
    return found[0] if found else lambda *inputs: None


def _holder(model: nn.Module, whole: fx.GraphModule, graph: fx.Graph) -> nn.Module:
    """Return a module that holds what a graph reads under its names: the model's tensors, and constants."""
    holder = nn.Module()
    lasting = model.state_dict().keys()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for target in {str(node.target) for node in graph.find_nodes(op="get_attr")}:
        *path, name = target.split(".")
        parent = holder
        for part in path:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = getattr(parent, part)
        owner, _, last = target.rpartition(".")
        value = parameters.get(target, buffers.get(target, getattr(whole.get_submodule(owner), last)))
        if isinstance(value, nn.Parameter):
            parent.register_parameter(name, value)
        elif isinstance(value, Tensor):
            parent.register_buffer(name, value, persistent=target in lasting)
        else:
            parent.add_module(name, value)
    return holder


def _write_buffers_early(graph: fx.Graph) -> None:
    """Move what an export writes into buffers at the graph's end to where the old values were read last."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)):
        buffer, value = node.args[:2]
        if not isinstance(buffer, fx.Node) or buffer.op != "get_attr" or not isinstance(value, fx.Node):
            continue
        if _written(value) is buffer:
            # It was written in place already.
            node.replace_all_uses_with(value)
            graph.erase_node(node)
            continue
        readers = [user for user in buffer.users if user is not node]
        if not node.users and not any(may_view(reader) for reader in readers):
            max([value, *readers], key=order.__getitem__).append(node)


def _is_size(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.meta.get("val"), SymInt | int | float | bool)


def _read_sizes_at_hand(graph: fx.Graph) -> None:
    """Have each size of the batch read of an operand of the operation that needs it, or of one before it."""
    earlier: list[fx.Node] = []
    for node in graph.nodes:
        if isinstance(node.meta.get("val"), Tensor) and node.op != "get_attr":
            for size in _sizes_of(node):
                near = [each for each in node.all_input_nodes if each.op != "get_attr"]
                for candidate in [*near, *reversed(earlier)]:
                    shape = getattr(candidate.meta.get("val"), "shape", ())
                    axes = [axis for axis, length in enumerate(shape) if str(length) == str(size.meta["val"])]
                    if axes:
                        size.args = (candidate, axes[0])
                        break
            earlier.append(node)


def _sizes_of(node: fx.Node) -> Iterator[fx.Node]:
    """Return the nodes that read a size for the operation `node`, by way of arithmetic or not."""
    for operand in node.all_input_nodes:
        if operand.target is torch.ops.aten.sym_size.int:
            yield operand
        elif _is_size(operand):
            yield from _sizes_of(operand)


def _of_open_shape(graph: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    """Return pairs of nodes between which a tensor is live whose shape the data decide.

    A stage receives into tensors whose shapes are known.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    *_, last, _ = graph.nodes
    return [
        (node, max((last if user.op == "output" else user for user in node.users), key=order.__getitem__))
        for node in graph.nodes
        if node.users
        and isinstance(value := node.meta.get("val"), Tensor)
        and any(free_unbacked_symbols(size) for size in value.shape)
    ]


def _spans(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield each operation whose effect lasts, and the one that ends it; without one that is the last."""
    begun: list[fx.Node] = []
    *nodes, last, _ = graph.nodes
    for node in (*nodes, last):
        if any(node.target is SPANS[each.target] for each in begun) or node is last:
            yield from ((each, node) for each in begun)
            begun = []
        if node.target in SPANS:
            begun.append(node)


def _out_of_place(module: fx.GraphModule, results: dict[str, Any]) -> list[tuple[fx.Node, fx.Node]]:
    """Replace operations in place where nobody sees their operand by another view.

    Buffers are written in place. Returns pairs of nodes between which a cut would separate a view of a tensor
    from a write into it.
    """
    views: _Views = {}
    pinned = []
    for node in list(module.graph.nodes):
        result = results.get(node.name)
        if isinstance(node.target, HigherOrderOperator):
            operands = [results[each.name] for each in node.all_input_nodes]
            if any(map(_writes_operands, operands)):
                pinned += [(views[_storage(each)][0], node) for each in operands if isinstance(each, Tensor)]
        written = _written(node)
        if written is not None:
            known = views[_storage(results[written.name])]
            counterpart = _counterpart(node)
            kept = any(each.op == "get_attr" for each in known)
            same = all(_form(results[each.name]) == _form(results[written.name]) for each in known)
            if kept or not same or counterpart is None:
                pinned.append((known[0], node))
            else:
                node.target = counterpart
                for each in known:
                    each.replace_all_uses_with(node, delete_user_cb=partial(operator.lt, node))
        for tensor in _tensors_in(result):
            views.setdefault(_storage(tensor), []).append(node)
    return pinned


def _written(node: fx.Node) -> fx.Node | None:
    """Return the operand that an operation writes into, `None` if it writes into none."""
    schema = getattr(node.target, "_schema", None)
    for argument, value in zip(schema.arguments if schema else (), node.args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node):
            return value
    return None


def _writes_operands(block: Any) -> bool:
    """Return whether a block of a graph, a module of its own, writes into what it is given."""
    given: set[fx.Node] = set()
    for node in block.graph.nodes if isinstance(block, fx.GraphModule) else ():
        if _written(node) in given:
            return True
        if node.op == "placeholder" or (may_view(node) and given.intersection(node.all_input_nodes)):
            given.add(node)
    return False


def _counterpart(node: fx.Node) -> Any:
    """Return the operation that computes what one in place does, and writes nowhere, if there is one."""
    packet, _, overload = str(node.target).removeprefix("aten.").partition(".")
    found = getattr(torch.ops.aten, packet.removesuffix("_"), None) if packet.endswith("_") else None
    return getattr(found, overload, None)


def may_view(node: fx.Node) -> bool:
    """Return whether what an operation returns may be a view of its operand."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _tensors_in(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for each in result:
            yield from _tensors_in(each)


def _storage(tensor: Tensor) -> int:
    return storage_id(tensor.untyped_storage())


def _form(result: Any) -> Any:
    return (result.shape, result.stride(), result.storage_offset()) if isinstance(result, Tensor) else None

"""Divide a model's evaluation among the stages that train it.

In evaluation a model runs other operations than in training. A stage has those that need its weights, and
every other operation runs in the first stage that has its operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx, nn

from src.config import ConfigError
from src.partition.torch.graph import Graph, computes, tensors_of
from src.partition.torch.simulation import Inputs, Value, values_of
from src.partition.torch.stage import Stage, boundary_tensors
from src.partition.torch.traced import Traced, graph_module


@dataclass(frozen=True)
class Evaluation:
    """The graph of a model in evaluation, and the stage of each of its nodes.

    Attributes:
        traced: the whole model in evaluation.
        stage_of: by node, inputs and the output left out.
        stages: number of stages.
    """

    traced: Traced
    stage_of: Mapping[fx.Node, int]
    stages: int

    def values(self, inputs: Inputs) -> dict[str, Value]:
        """Return the form of each node's tensor by the node's name, for inputs like `inputs`.

        Raises:
            ConfigError: where the model does something else for so many samples.
        """
        return values_of(self.traced, inputs)

    def stage(self, number: int, values: Mapping[str, Value]) -> Stage:
        """Make a stage, for tensors of these forms; its modules are to be in evaluation mode when it runs."""
        live = [self._live(boundary) for boundary in (number, number + 1)]
        graph = fx.Graph()
        known = {node: graph.placeholder(node.name) for node in live[0]}
        for node, place in self.stage_of.items():
            if place == number:
                known[node] = graph.node_copy(node, known.__getitem__)
        last = number == self.stages - 1
        results = [known[node] for node in live[1]]
        graph.output(results[0] if last and len(results) == 1 else tuple(results))
        part = graph_module(self.traced.module, graph, f"Evaluation{number}")
        received = boundary_tensors(live[0], values) if number else ()
        return Stage(part, received, boundary_tensors(live[1], values), last=last)

    def _live(self, boundary: int) -> tuple[fx.Node, ...]:
        """Return the nodes that stages before `boundary` compute and those behind it read."""
        nodes = self.traced.module.graph.nodes
        if boundary == 0:
            return tuple(node for node in nodes if node.op == "placeholder")
        if boundary == self.stages:
            (output,) = (node for node in nodes if node.op == "output")
            returned = output.args[0]
            return (returned,) if isinstance(returned, fx.Node) else tuple(returned)
        return tuple(
            node
            for node in nodes
            if self.stage_of.get(node, -1) < boundary
            and node.op != "output"
            and any(self.stage_of.get(user, self.stages) >= boundary for user in node.users)
        )


def evaluation(graph: Graph, boundaries: Sequence[int], traced: Traced) -> Evaluation:
    """Divide the evaluation of a model that is cut for training at `boundaries`.

    Args:
        graph: the whole model in training.
        boundaries: the inner ones of the cut.
        traced: the whole model in evaluation.

    Raises:
        ConfigError: for a model that uses its weights in another order than in training.
    """
    ends = [*boundaries, len(graph.operations)]
    homes = graph.holders(boundaries)
    module = traced.module
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    together = _together(nodes, traced.pinned)
    # A table that several stages use is only read, and each rank has it.
    needs = {
        node: [
            homes[id(tensor)]
            for tensor in tensors_of(module, node)
            if id(tensor) in homes and (len(homes[id(tensor)]) == 1 or isinstance(tensor, nn.Parameter))
        ]
        for node in nodes
    }
    stage_of: dict[fx.Node, int] = {}
    for node in nodes:
        if node not in stage_of:
            group = together.get(node, [node])
            before = [stage_of.get(each, 0) for one in group for each in one.all_input_nodes]
            # A weight is read by a node of its own.
            read = [one for each in group for one in each.all_input_nodes if one.op == "get_attr"]
            needed = [holders for one in (*group, *read) for holders in needs[one]]
            stage_of |= dict.fromkeys(group, _first_stage(max(before, default=0), needed))
    for node in reversed(nodes):
        users = [stage_of[user] for user in node.users if user in stage_of]
        if users and (not node.all_input_nodes or not computes(node)):
            # Weights, sizes and constants are read where they are needed.
            stage_of[node] = min(users)
        if any(stage_of[node] not in holders for holders in needs[node]):
            raise ConfigError(
                f"the model can't be cut here: in evaluation it uses {node.target} at another place than in "
                "training; choose another strategy.partition"
            )
    return Evaluation(traced, stage_of, len(ends))


def _first_stage(least: int, needed: Sequence[set[int]]) -> int:
    """Return the first stage from `least` on that is in all sets of `needed`, or of each its first one."""
    common = [stage for stage in set.intersection(*needed) if stage >= least] if needed else []
    return min(common, default=max([least, *map(min, needed)]))


def _together(
    nodes: Sequence[fx.Node], pinned: Sequence[tuple[fx.Node, fx.Node]]
) -> dict[fx.Node, Sequence[fx.Node]]:
    """Return for each node between pinned ones all nodes that must be in its stage."""
    places = {node: place for place, node in enumerate(nodes)}
    groups: dict[fx.Node, Sequence[fx.Node]] = {}
    for first, last in pinned:
        start, stop = places.get(first, 0), places[last] + 1
        joined = [groups.get(node, [node]) for node in nodes[start:stop]]
        start = min(places[group[0]] for group in joined)
        stop = max(places[group[-1]] for group in joined) + 1
        groups |= dict.fromkeys(nodes[start:stop], nodes[start:stop])
    return groups

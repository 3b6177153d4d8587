"""Traced parts of split layers compute what the layers do, in float64, on two ranks as threads."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, fx, nn

from src.config import ConfigError
from src.partition.torch.graph import Graph, operations
from src.runtime.torch.tensor.plan import parallelize, resolve
from src.runtime.torch.tensor.tracing import check_traced
from tests.plugin.model import split
from tests.runtime.torch.tensor.test_styles import ATTENTION, IMAGE, Tied, part
from tests.runtime.torch.tensor.threads import ThreadGroup, on_ranks

TRACING = threading.Lock()
PAIR = {"0": "colwise", "3": "rowwise"}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def traced(model: nn.Module, words: dict[str, str], inputs: Tensor, group: ThreadGroup) -> Graph:
    """A rank's part of a model as a graph."""
    own = copy.deepcopy(model)
    group.traced = True
    parallelize(own, resolve("a test", words, own, group.size), group)
    with TRACING:
        group.alone = True
        graph = operations(own, inputs, tied="reduce")
        group.alone = False
    return graph


CASES = {
    "attention": (lambda: split.heads(classes=3, shape=IMAGE), ATTENTION, lambda: torch.randn(2, 1, 4, 4), 2),
    # Of the embedding and of the head; features are gathered, not summed.
    "tied": (Tied, {"head": "colwise_gather_output"}, lambda: torch.tensor([[0, 6, 5], [3, 1, 6]]), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_a_graph_of_parts_computes_what_the_whole_model_does(name: str) -> None:
    build, words, make, sums = CASES[name]
    torch.manual_seed(0)
    model, inputs = build(), make()
    outputs = model(inputs)
    outputs.square().sum().backward()

    def work(group: ThreadGroup) -> tuple[Tensor, dict[str, Tensor], int]:
        module = traced(model, words, inputs, group).module
        group.sums = 0
        found = module(inputs)
        found.square().sum().backward()
        return found.detach(), {name: each.grad for name, each in module.named_parameters()}, group.sums

    whole = dict(model.named_parameters(remove_duplicate=False))
    for rank, (found, gradients, count) in enumerate(on_ranks(2, work)):
        # Layers that take the same features still share one sum.
        assert count == sums
        torch.testing.assert_close(found, outputs.detach(), rtol=1e-12, atol=1e-12)
        for path, gradient in gradients.items():
            grad = whole[path].grad
            assert grad is not None
            torch.testing.assert_close(gradient, part(grad, gradient, rank, 2), rtol=1e-12, atol=1e-12)


def between(graph: Graph) -> set[str]:
    """The operations that the first split layer and its partner have together."""
    places = [
        place
        for place, each in enumerate(graph.operations)
        for node in each.nodes
        if str(node.target).startswith(("0.weight", "3.weight"))
    ]
    return {each.name for each in graph.operations[places[0] : places[-1] + 1]}


@pytest.mark.parametrize("draws", [True, False])
def test_no_cut_lies_where_ranks_draw_for_themselves(draws: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3))
    group = ThreadGroup(2, 0, threading.Barrier(1), [])
    group.region.watches, group.region.draws = False, draws
    graph = traced(model, PAIR, torch.randn(4, 6), group)
    assert len(between(graph)) == (1 if draws else 4)


def test_layers_that_were_taken_as_they_are_are_refused() -> None:
    chain = nn.Sequential(nn.Linear(2, 2))
    graph = fx.Graph()
    graph.output(graph.call_module("0", (graph.placeholder("inputs"),)))
    with pytest.raises(ConfigError, match="can't be exported"):
        check_traced(fx.GraphModule(chain, graph))

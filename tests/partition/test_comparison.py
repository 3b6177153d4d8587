"""The comparison before training finds what a tracer has lost, and lets a faithful one pass."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from bench.models.own_backward import Sign
from src.config import ConfigError
from src.models.torch.unchanged import evaluating
from src.partition.torch import comparison
from src.partition.torch import graph as graphs
from src.partition.torch.comparison import CutDiffersError
from src.partition.torch.evaluation import evaluation
from src.partition.torch.graph import Graph, operations
from src.partition.torch.trace import traced
from src.partition.torch.traced import Traced
from src.tasks.torch.outputs import model_outputs
from tests.partition import models

LABELS = torch.tensor([0, 3, 1, 9])


def loss(outputs: tuple[Tensor, ...]) -> Tensor:
    return functional.cross_entropy(outputs[0], LABELS[: len(outputs[0])])


def check(model: nn.Module, graph: Graph | None = None, inputs: Tensor | None = None) -> None:
    inputs = models.images(4).float() if inputs is None else inputs
    graph = graph or operations(model, inputs)
    comparison.check(model, graph, inputs, model_outputs, loss)


class Model(nn.Module):
    """Has something of each kind that a tracer may lose."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.left, self.right, self.head = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 10)
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.norm(self.conv(images))).mean((2, 3))
        both = torch.tanh(self.left(hidden)) - self.right(hidden) * 0.5
        self.centre.lerp_(both.detach().mean(0), 0.3)
        return self.head(both - self.centre)


def node(graph: fx.Graph, name: str, number: int = 0) -> fx.Node:
    return [each for each in graph.nodes if str(each.target).startswith(f"aten.{name}.")][number]


def without(name: str) -> Callable[[fx.Graph], None]:
    def drop(graph: fx.Graph) -> None:
        dropped = node(graph, name)
        dropped.replace_all_uses_with(dropped.args[0])
        graph.erase_node(dropped)

    return drop


def argument(name: str, place: int, value: object) -> Callable[[fx.Graph], None]:
    def change(graph: fx.Graph) -> None:
        node(graph, name).update_arg(place, value)

    return change


def detached(graph: fx.Graph) -> None:
    right = node(graph, "linear", 1)
    with graph.inserting_after(right):
        cut = graph.call_function(torch.ops.aten.detach.default, (right,))
    right.replace_all_uses_with(cut, delete_user_cb=lambda user: user is not cut)


def swapped(graph: fx.Graph) -> None:
    difference = node(graph, "sub")
    difference.args = difference.args[::-1]


def function(name: str, target: object) -> Callable[[fx.Graph], None]:
    def replace(graph: fx.Graph) -> None:
        node(graph, name).target = target

    return replace


def same_weights(graph: fx.Graph) -> None:
    for reader in list(graph.nodes):
        if reader.op == "get_attr" and str(reader.target).startswith("right."):
            reader.target = str(reader.target).replace("right", "left")


def failing(values: Tensor) -> Tensor:
    """Pass while forms are followed through the graph, and fail once it runs."""
    if not isinstance(values, FakeTensor):
        raise RuntimeError("not on numbers")
    return values


MUTATIONS: dict[str, tuple[Callable[[fx.Graph], None], str]] = {
    "a dropped node": (without("tanh"), "the output"),
    "another constant": (argument("mul", 1, 0.5001), "the output"),
    "a detached branch": (detached, "the gradient of conv.weight differs"),
    "swapped operands": (swapped, "the output"),
    "a lost buffer write": (without("lerp_"), "the output"),
    "another function": (function("relu", torch.ops.aten.gelu.default), "the output"),
    "statistics of evaluation": (argument("batch_norm", 5, False), "the output"),
    "another momentum": (argument("batch_norm", 6, 0.11), "the output in evaluation"),
    "another layer's weights": (same_weights, "the output"),
    "an operation that fails": (function("relu", failing), r"it fails in stages \(not on numbers\)"),
    "another reduction": (function("mean", torch.ops.aten.amax.default), "the output"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_mutated_tracer_is_found(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Model()
    change, told = MUTATIONS[mutation]

    def mutated(*arguments: Any) -> Traced:
        trained = traced(*arguments)
        change(trained.module.graph)
        trained.module.recompile()
        return dataclasses.replace(trained, pinned=())

    monkeypatch.setattr(graphs, "traced", mutated)
    with pytest.raises(CutDiffersError, match=told):
        check(model)


def test_a_faithful_cut_passes_and_leaves_the_model_alone() -> None:
    torch.manual_seed(0)
    model = Model()
    before = copy.deepcopy(model.state_dict())
    inputs = models.images(4).float()
    random = torch.get_rng_state()
    check(model, inputs=inputs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random) and model.training


class Reordered(nn.Module):
    """Uses its layers in another order in evaluation than in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, values: Tensor) -> Tensor:
        one, other = (self.first, self.second) if self.training else (self.second, self.first)
        return other(torch.tanh(one(values)))


def test_layers_in_another_order_in_evaluation_are_refused() -> None:
    model, inputs = Reordered(), (torch.randn(4, 16),)
    graph = operations(model, inputs)
    last = len(graph.operations) - 1
    with evaluating(model):
        evaluated = traced(model, inputs, model_outputs)
    with pytest.raises(ConfigError, match=r"place than in training; choose another strategy.partition"):
        evaluation(graph, [last], evaluated)


class Same(Sign):
    """A backward pass of one's own that is torch's: it may be another one at another step."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        return values.clone()


class Dense(nn.Module):
    """Dense layers, between which a subclass does something."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(784, 16), nn.Linear(16, 10)

    def between(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.between(torch.tanh(self.first(images.flatten(1)))))


class OwnFunction(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        return Sign.apply(hidden)


class OwnButSame(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        return Same.apply(hidden)


class Hooked(Dense):
    def between(self, hidden: Tensor) -> Tensor:
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 0.5)
        return hidden


@pytest.mark.parametrize(
    ("model", "told"),
    [(OwnFunction, "Sign"), (OwnButSame, "Same"), (Hooked, "a hook of a tensor")],
)
def test_a_backward_pass_of_ones_own_is_refused(model: type[nn.Module], told: str) -> None:
    with pytest.raises(ConfigError, match=f"would leave out .*{told}"):
        check(model())


def test_a_chain_keeps_its_links_with_their_own_backward_pass() -> None:
    class Rounded(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return Sign.apply(values)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 16), Rounded(), nn.Sequential(nn.ReLU(), nn.Linear(16, 10))
    )
    graph = operations(model, models.images(4).float())
    assert graph.names == ("0", "1", "2", "3.0", "3.1")
    check(model, graph)


class Remembers(Dense):
    """Adds what it has kept of the step before, which is no buffer."""

    kept: Tensor | None = None

    def between(self, hidden: Tensor) -> Tensor:
        result = hidden if self.kept is None else hidden + self.kept.mean()
        self.kept = hidden.detach()
        return result


class Counts(Dense):
    """Does something else in each tenth step."""

    steps = 0

    def between(self, hidden: Tensor) -> Tensor:
        self.steps += 1
        return hidden if self.steps % 10 else hidden * 2


class Skips(Dense):
    """Leaves something out, as Python's random numbers say."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden if random.random() < 0.5 else hidden * 2


class CountsInside(Dense):
    """Counts in what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"steps": 0}

    def between(self, hidden: Tensor) -> Tensor:
        self.state["steps"] += 1
        return hidden if self.state["steps"] % 10 else hidden * 2


class DrawsItself(Dense):
    """Leaves something out at times, as a generator of its own says."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def between(self, hidden: Tensor) -> Tensor:
        return hidden if self.generator.random() < 0.99 else hidden * 2


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Counts, "what changes steps"),
        (CountsInside, r"what changes state\['steps'\]"),
        (Skips, "what draws Python's"),
        (DrawsItself, "what changes generator"),
    ],
)
def test_what_python_does_otherwise_in_the_next_step_is_found(model: type[nn.Module], told: str) -> None:
    with pytest.raises(CutDiffersError, match=f"{told}.* isn't run in stages"):
        check(model())


def test_state_that_is_no_buffer_is_found() -> None:
    with pytest.raises((ConfigError, CutDiffersError), match=r"second step|can't be cut"):
        check(Remembers())


class Blocked(Dense):
    """A block without gradients, in which a buffer is written and read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def between(self, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
            scale = hidden.std()
        return hidden * scale - self.mean


class Replaced(Blocked):
    """Puts another tensor in a buffer's place."""

    def between(self, hidden: Tensor) -> Tensor:
        self.mean = self.mean * 0.9 + hidden.detach().mean(0)
        return hidden - self.mean


class Viewed(Blocked):
    """Writes into views of an activation, and of a buffer."""

    def between(self, hidden: Tensor) -> Tensor:
        hidden = hidden * 1.0
        hidden[:, :4] *= 2.0
        self.mean[:4] = hidden.detach().mean(0)[:4]
        return hidden + self.mean


class Hooks(Dense):
    """Hooks of the root, of a layer, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.3,))
        self.register_forward_hook(lambda module, inputs, output: output / 2)
        self.first.register_forward_hook(lambda module, inputs, output: output + 1)


@pytest.mark.parametrize("model", [Blocked, Replaced, Viewed, Hooks])
def test_what_symbolic_tracing_would_change_is_kept(model: type[nn.Module]) -> None:
    torch.manual_seed(0)
    check(model())


class Gated(Dense):
    """Has a weight of which no gradient is wanted: a gate that is only looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(28 * 28, 10)

    def forward(self, images: Tensor) -> Tensor:
        gate = self.gate(images.flatten(1))
        return super().forward(images) * torch.sigmoid(gate.detach())


class Beside(nn.Module):
    """Returns what it has made of a gate, too, which no loss reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.dense = nn.Linear(28 * 28, 10), Dense()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        gate = self.gate(images.flatten(1))
        return self.dense(images), torch.tanh(gate)


def test_a_gradient_that_none_wants_is_none_or_a_word() -> None:
    graph = operations(Gated(), models.images(4).float())
    values = graph.values(models.images(4).float())
    crossing = {node.name: values[node.name].requires_grad for live in graph.live for node in live}
    assert set(crossing.values()) == {True, False}
    check(Gated())
    # torch's stages send zeros back, with which, unlike with none, weight decay changes a weight.
    with pytest.raises(CutDiffersError, match=r"the gradient of gate\.\w+ is there only in stages"):
        check(Beside())


class Scaled(nn.Module):
    """Divides by what it has seen, which autograd saves, and each pass writes into."""

    power: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("power", torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        self.power.mul_(0.9).add_(x.detach().square().mean(0), alpha=0.1)
        return x / self.power


def test_what_a_pass_writes_into_before_an_earlier_ones_backward_pass_is_found() -> None:
    def step(*, at_once: bool) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), Scaled(), Signs(), nn.Linear(64, 10))
        inputs = models.images(4).float()
        comparison.check(model, operations(model, inputs), inputs, model_outputs, loss, at_once=at_once)

    step(at_once=False)
    with pytest.raises(CutDiffersError, match=r"it fails in stages .*modified by an inplace operation"):
        step(at_once=True)


class Signs(nn.Module):
    """Has a backward pass of its own, by which a chain is cut between its links alone."""

    def forward(self, x: Tensor) -> Tensor:
        return Sign.apply(x)


class Passes(nn.Module):
    """Counts its passes in Python, and computes by that."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return x / self.passes


def test_what_is_another_pass_when_it_is_computed_again_is_found() -> None:
    links = (nn.Linear(784, 64), Passes(), nn.Tanh(), nn.Linear(64, 64), Signs(), nn.Linear(64, 10))
    model = nn.Sequential(nn.Flatten(), *links)
    graph = operations(model, models.images(4).float())

    def step(*, again: bool) -> None:
        comparison.check(model, graph, models.images(4).float(), model_outputs, loss, again=again)

    step(again=False)
    with pytest.raises(CutDiffersError, match="differs by"):
        step(again=True)


def test_the_mean_of_normalised_features_is_rounding() -> None:
    one = torch.tensor([1.0], dtype=torch.float64)

    def step(mean: float) -> comparison.Step:
        named = {"norm.running_mean": one * mean, "norm.running_var": one, "table": one * 1e-17}
        return comparison.Step((one,), (one,), (one,), {"weight": one}, named, {})

    assert comparison.first_difference(step(1e-17), step(3e-17), comparison.SHARP) is None
    assert comparison.first_difference(step(0.1), step(0.1 + 1e-8), comparison.SHARP) is not None
    # What has no spread beside it is compared as it is.
    other = dataclasses.replace(step(1e-17), buffers={**step(1e-17).buffers, "table": one * 3e-17})
    assert "the buffer table" in str(comparison.first_difference(step(1e-17), other, comparison.SHARP))

"""A cut model computes what the whole one computes, wherever it is cut."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from src.config import ConfigError
from src.partition import model_profile
from src.partition.torch.evaluation import evaluation
from src.partition.torch.graph import Graph, Value, operations
from src.partition.torch.stage import BoundaryTensor, Stage, as_received
from src.partition.torch.trace import traced
from src.tasks.torch.outputs import model_outputs
from tests.partition import models

Outcome = tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]


def whole(model: nn.Module, inputs: Tensor) -> Outcome:
    """Logits, gradients and buffers of the uncut model, which is left alone."""
    twin = copy.deepcopy(model)
    logits = twin(inputs)
    logits.square().sum().backward()
    return logits.detach(), {n: p.grad for n, p in twin.named_parameters()}, dict(twin.named_buffers())


def cut(model: nn.Module, inputs: Tensor, boundaries: Sequence[int]) -> Outcome:
    """The same through stages between which nothing but detached wire tensors and their gradients go."""
    twin = copy.deepcopy(model)
    graph = operations(twin, inputs)
    return run(graph, inputs, boundaries)


def run(
    graph: Graph, inputs: Tensor, boundaries: Sequence[int], values: dict[str, Value] | None = None
) -> Outcome:
    values = values or graph.values(inputs)
    ends = [0, *boundaries, len(graph.operations)]
    stages = [Stage.of(graph, a, b, values) for a, b in itertools.pairwise(ends)]
    passed: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
    received: tuple[Tensor, ...] = (inputs,)
    for stage in stages:
        outputs = stage(*received)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        passed.append((received, outputs))
        for tensor, wire in zip(outputs, stage.sent, strict=True):
            assert tensor.shape == wire.shape and tensor.dtype == wire.dtype
            assert stage.last or (tensor.is_contiguous() and tensor.requires_grad == wire.requires_grad)
        received = tuple(
            t.detach().requires_grad_(w.requires_grad) for t, w in zip(outputs, stage.sent, strict=True)
        )
    logits = passed[-1][1][0]
    gradients: list[Tensor | None] = [2 * logits.detach()]
    for received, outputs in reversed(passed):
        pairs = [(t, g) for t, g in zip(outputs, gradients, strict=True) if t.requires_grad]
        torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        gradients = [tensor.grad for tensor in received]
    named = {n.removeprefix("part."): p for stage in stages for n, p in stage.named_parameters()}
    buffers = {n.removeprefix("part."): b for stage in stages for n, b in stage.named_buffers()}
    return logits.detach(), {n: p.grad for n, p in named.items()}, buffers


def assert_same(actual: Outcome, expected: Outcome) -> None:
    torch.testing.assert_close(actual[0], expected[0], rtol=0, atol=0)
    for one, other in zip(actual[1:], expected[1:], strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-12, atol=1e-14, msg=name)


def assert_same_wherever_cut(
    model: nn.Module, graph: Graph, inputs: Tensor, cuts: Sequence[Sequence[int]]
) -> None:
    """Check one graph of a model's copy, cut in turn at each list of boundaries, against the whole model."""
    expected = whole(model, inputs)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    values = graph.values(inputs)
    for boundaries in cuts:
        graph.module.load_state_dict(before, strict=False)
        graph.module.zero_grad()
        assert_same(run(graph, inputs, boundaries, values), expected)


@pytest.mark.slow
def test_every_boundary_of_resnet18() -> None:
    _, model = models.of("resnet18")
    model = model.to(memory_format=torch.channels_last)
    inputs = models.images(2, size=16)
    graph = operations(copy.deepcopy(model), inputs)
    assert len(graph.operations) == 69
    assert_same_wherever_cut(model, graph, inputs, [[boundary] for boundary in range(1, 69)])


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "cnn",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in ("unet", "lstm", "mobilenet_v2", "resnet50", "vit")
        ),
    ],
)
def test_models_of_the_project(name: str) -> None:
    # The same masks in both would need the same random numbers in the same order.
    words = ["model.dropout=0"] if name in ("mlp", "mobilenet_v2") else []
    _, model = models.of(name, *words)
    inputs = models.images(2)
    graph = operations(copy.deepcopy(model), inputs)
    count = len(graph.operations)
    cuts = ([1], [count // 2], [count - 1], [count // 3, 2 * count // 3], [1, 2, 3])
    assert_same_wherever_cut(model, graph, inputs, [boundaries[: count - 1] for boundaries in cuts])


def test_a_stage_that_only_passes_a_skip_on() -> None:
    _, model = models.of("resnet18")
    inputs = models.images(2)
    graph = operations(copy.deepcopy(model), inputs)
    names = ["layer1.0.bn1", "layer1.0.conv2", "layer1.0.bn2"]
    boundaries = [model_profile.boundary(graph.names, name) for name in names]
    # The block's input goes by all three; no operation of the second and third stage reads it.
    assert [len(graph.live[boundary]) for boundary in boundaries] == [2, 2, 2]
    assert len({graph.live[boundary][0].name for boundary in boundaries}) == 1
    assert_same(cut(model, inputs, boundaries), whole(model, inputs))
    assert_same(cut(model, inputs, [boundaries[0], boundaries[2]]), whole(model, inputs))


@pytest.mark.slow
def test_resnet101_has_345_operations() -> None:
    _, model = models.of("resnet101")
    graph = operations(model.float(), models.images(2).float())
    assert len(graph.operations) == 345
    assert model_profile.boundary(graph.names, "layer3.5.conv2") == 133
    assert sum(len(live) == 2 for live in graph.live) > 200


@pytest.mark.parametrize(
    "model",
    [models.InPlace(), models.Sizes(), models.OwnParameter(), models.Inside()],
    ids=lambda m: type(m).__name__,
)
def test_awkward_models_at_every_boundary(model: nn.Module) -> None:
    model = model.double()
    inputs = models.images(3)
    expected = whole(model, inputs)
    count = len(operations(copy.deepcopy(model), inputs).operations)
    assert count > 2
    for boundary in range(1, count):
        assert_same(cut(model, inputs, [boundary]), expected)


def test_sizes_never_cross_a_boundary() -> None:
    graph = operations(models.Sizes().double(), models.images(3))
    values = graph.values(models.images(3))
    assert all(node.name in values for live in graph.live for node in live)


@pytest.mark.slow
def test_a_model_that_joins_its_layers_densely() -> None:
    from torchvision.models import densenet121

    torch.manual_seed(0)
    model = densenet121(num_classes=10)
    model.features.conv0 = nn.Conv2d(1, 64, 3, padding=1, bias=False)
    model = model.double()
    inputs = models.images(2, size=32)
    graph = operations(copy.deepcopy(model), inputs)
    busiest = max(range(len(graph.live)), key=lambda boundary: len(graph.live[boundary]))
    assert len(graph.live[busiest]) > 10
    assert_same(cut(model, inputs, [busiest]), whole(model, inputs))


def test_shared_weights_stay_on_one_stage() -> None:
    graph = operations(models.Tied().double(), models.images(2))
    holders = [
        op for op in graph.operations if any(t is graph.module.again.weight for t in graph.tensors(op))
    ]
    assert len(holders) == 1
    assert [str(node.target) for node in holders[0].nodes].count("again.weight") == 2


def test_shared_weights_may_be_on_several_stages() -> None:
    model, inputs = models.Tied().double(), models.images(3)
    expected = whole(model, inputs)
    twin = copy.deepcopy(model)
    graph = operations(twin, inputs, tied="reduce")
    (boundary,) = [n for n in range(1, len(graph.operations)) if graph.names[n].startswith("relu_1")]
    assert graph.holders([boundary])[id(twin.again.weight)] == {0, 1}
    assert graph.holders([boundary])[id(twin.head.weight)] == {1}
    # Within one process the stages' parts of the gradient add up by themselves.
    assert_same(run(graph, inputs, [boundary]), expected)


def test_each_stage_has_a_table_of_its_own_that_is_only_read() -> None:
    model, inputs = models.Tables().double(), models.images(3)
    expected = whole(model, inputs)
    graph = operations(copy.deepcopy(model), inputs)
    inner = [n for n in range(1, len(graph.operations)) if graph.names[n].startswith("blocks.")]
    assert [graph.names[n] for n in inner] == ["blocks.0", "blocks.1", "blocks.2"]
    for boundary in range(1, len(graph.operations)):
        assert_same(cut(model, inputs, [boundary]), expected)
    assert_same(cut(model, inputs, inner), expected)
    # In evaluation, too, where the stages are those of the training.
    model.eval()
    divided = evaluation(graph, inner, traced(model, (inputs,), model_outputs))
    values = divided.values(inputs)
    passed: tuple[Tensor, ...] = (inputs,)
    for number in range(len(inner) + 1):
        stage = divided.stage(number, values)
        sent = stage(*passed)
        passed = (sent,) if isinstance(sent, Tensor) else sent
    assert torch.equal(passed[0], model(inputs))


@pytest.mark.parametrize("kind", ["written", "viewed", "normed"])
def test_a_table_that_is_written_stays_on_one_stage(kind: str) -> None:
    model, inputs = models.Tables(kind).double(), models.images(3)
    graph = operations(copy.deepcopy(model), inputs)
    holders = [op for op in graph.operations if any(t.shape == (2, 32) for t in graph.tensors(op))]
    assert len(holders) == 1
    expected = whole(model, inputs)
    for boundary in range(1, len(graph.operations)):
        assert_same(cut(model, inputs, [boundary]), expected)


def test_what_cannot_be_cut_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"can't be cut: .*the data decide there which operations run"):
        operations(models.Branching().double(), models.images(2))


def test_names_of_stages() -> None:
    _, model = models.of("resnet18")
    graph = operations(model, models.images(2))
    names = [operation.name for operation in graph.operations]
    assert names[model_profile.boundary(graph.names, "layer2")] == "layer2.0.conv1"
    with pytest.raises(ConfigError, match=r"did you mean layer3.1.conv2\?"):
        model_profile.boundary(graph.names, "layer3.1.convv2")
    with pytest.raises(ConfigError, match="begins there anyway"):
        model_profile.boundary(graph.names, "conv1")


class Paths(nn.Module):
    """Modules in lists, one called twice, and some that run nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.act = nn.Linear(8, 8), nn.ReLU()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Identity()) for _ in range(6))
        self.twice, self.idle, self.head = nn.Linear(8, 8), nn.Linear(2, 2), nn.Linear(8, 4)
        self.alias = self.layers[4]

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.act(self.stem(values))
        for number, layer in enumerate(self.layers):
            hidden = self.act(layer(hidden))
            if number in (1, 3):
                hidden = torch.tanh(self.twice(hidden))
        return self.head(hidden)


def test_a_stage_begins_with_a_module_by_its_path() -> None:
    graph = operations(Paths(), torch.randn(4, 8))

    def first(name: str) -> str:
        return graph.names[model_profile.boundary(graph.names, name, graph.modules)]

    assert [first(name) for name in ("layers", "layers.1", "layers.5", "twice", "head")] == [
        "layers.0.0", "layers.1.0", "layers.5.0", "twice", "head",
    ]  # fmt: skip
    # Of a layer without weights that is called several times it is the first call.
    assert model_profile.boundary(graph.names, "act", graph.modules) == 1
    for name, told in {
        "stem": "the first stage begins there anyway",
        "layers.2": r"layers.2 is within twice, an operation that stays whole, and the next one is tanh",
        "layers.1.1": "in training the model runs no operation by calling it; did you mean layers.1.0",
        "idle": "in training the model runs no operation by calling it; did you mean",
        "layers.12": "no operation of the model is called that; did you mean layers.5?",
        "layer.5": "no operation of the model is called that; did you mean layers.5?",
    }.items():
        with pytest.raises(ConfigError, match=rf"^strategy\.partition=\[{name}\]: {told}"):
            first(name)
    assert graph.modules["alias"] == graph.modules["layers.4"]


def test_a_module_that_is_the_last_operation_has_none_after_it() -> None:
    names, modules = ("stem", "wte"), {"wte": 1, "h": 1, "h.0": 1}
    with pytest.raises(ConfigError, match=r"h\.0 is within wte, an operation .* and it is the last one"):
        model_profile.boundary(names, "h.0", modules)


def test_the_module_that_was_traced_keeps_its_buffers() -> None:
    _, model = models.of("resnet18")
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    graph = operations(model, models.images(2))
    graph.values(models.images(4))
    for name, buffer in graph.module.named_buffers():
        assert torch.equal(buffer, before[name]), name
    convolution = graph.operations[0].nodes[-1].name
    assert graph.values(models.images(4))[convolution].shape == (4, 64, 14, 14)


def test_strides_of_sizes_of_one_do_not_cross_a_boundary() -> None:
    value = torch.randn(4, 10, 1, 1)
    crossing = BoundaryTensor(Value(tuple(value.shape), value.stride(), value.dtype, requires_grad=False))
    # As cuDNN lays it out.
    packed = as_received(crossing.pack(value.as_strided(value.shape, (10, 1, 10, 10))))
    assert packed.stride() == crossing.buffer(value.device).stride()
    assert torch.equal(crossing.unpack(packed), value)


class HeadIsEmbedding(nn.Module):
    """Its head is its embedding, before which stands an operation without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(self.embedding(tokens))))


def test_a_weight_on_several_stages_is_evaluated_on_one_that_has_it_wherever_the_cut_is() -> None:
    torch.manual_seed(0)
    model, tokens = HeadIsEmbedding().double(), torch.arange(6).reshape(2, 3)
    graph = operations(model, tokens, tied="reduce")
    assert graph.names == ("embedding", "layer", "tanh", "head")
    whole = model.eval()(tokens)
    evaluated = traced(model, (tokens,), model_outputs)
    for boundaries in ([1, 2, 3], [1], [2], [3], [1, 3]):
        divided = evaluation(graph, boundaries, evaluated)
        values = divided.values(tokens)
        passed: Sequence[Tensor] = (tokens,)
        for number in range(len(boundaries) + 1):
            result = divided.stage(number, values).eval()(*passed)
            passed = (result,) if isinstance(result, Tensor) else result
        assert torch.equal(passed[0], whole), boundaries

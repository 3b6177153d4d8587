"""Split layers return and pass back what whole ones do, in float64, on two to four ranks as threads."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from src.runtime.torch.tensor.plan import parallelize, resolve
from tests.plugin.model import split
from tests.runtime.torch.tensor.threads import ThreadGroup, on_ranks, split_step

IMAGE = (4, 4, 1)
ATTENTION = {
    **dict.fromkeys(("between.query", "between.key", "between.value"), "colwise"),
    "between.out": "rowwise",
}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Tied(nn.Module):
    """A language model whose head is its embedding, of a number of tokens that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(7, 6, padding_idx=5), nn.LayerNorm(6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.embedding(tokens)))


class Scaled(nn.Module):
    """As queries that are normalised: one small layer for each rank's own heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.RMSNorm(3), nn.Linear(12, 5)

    def forward(self, features: Tensor) -> Tensor:
        return self.last(self.norm(self.first(features).unflatten(-1, (-1, 3))).flatten(-2))


CASES = {
    "mlp": (
        lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 5)),
        {"1": "colwise", "3": "rowwise"},
        lambda: torch.randn(3, 6),
        (2, 3, 4),
    ),
    "attention": (
        lambda: split.heads(classes=3, shape=IMAGE),
        ATTENTION,
        lambda: torch.randn(2, 1, 4, 4),
        (2, 4),
    ),
    "tied": (Tied, {"head": "colwise_gather_output"}, lambda: torch.tensor([[0, 6, 5], [3, 1, 6]]), (2, 4)),
    "per head": (
        Scaled,
        {"first": "colwise", "norm": "replicated_with_grad_allreduce", "last": "rowwise"},
        lambda: torch.randn(3, 6),
        (2, 4),
    ),
}


def part(whole: Tensor, own: Tensor, rank: int, size: int) -> Tensor:
    """What a rank has of a tensor, as `torch.chunk` divides it along the dimension in which it has less."""
    lengths = zip(whole.shape, own.shape, strict=True)
    split = [dim for dim, (length, kept) in enumerate(lengths) if length != kept]
    return whole.chunk(size, split[0])[rank] if split else whole


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, case in CASES.items() for size in case[3]])
def test_outputs_and_gradients_are_those_of_the_whole_model(name: str, size: int) -> None:
    build, words, make, _ = CASES[name]
    torch.manual_seed(0)
    model, inputs = build(), make()
    outputs = model(inputs)
    outputs.square().sum().backward()
    for rank, (found, gradients, _) in enumerate(split_step(model, words, inputs, size)):
        torch.testing.assert_close(found, outputs.detach(), rtol=1e-12, atol=1e-12)
        for path, parameter in model.named_parameters():
            assert parameter.grad is not None
            expected = part(parameter.grad, gradients[path], rank, size)
            torch.testing.assert_close(gradients[path], expected, rtol=1e-12, atol=1e-12, msg=path)


def test_an_encoder_layer_of_torch_s_evaluates_by_its_split_layers() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()
    words, tokens = {"linear1": "colwise", "linear2": "rowwise"}, torch.randn(2, 3, 4)

    def work(group: ThreadGroup) -> Tensor:
        own = copy.deepcopy(layer)
        parallelize(own, resolve("a test", words, own, 2), group)
        with torch.no_grad():
            return own(tokens)

    with torch.no_grad():
        expected = layer(tokens)
    for found in on_ranks(2, work):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_layers_that_take_the_same_features_sum_their_gradients_once() -> None:
    model = split.heads(classes=3, shape=IMAGE)
    # One sum of `out` in the forward pass, and one for queries, keys and values in the backward pass.
    assert [sums for *_, sums in split_step(model, ATTENTION, torch.randn(2, 1, 4, 4), 2)] == [2, 2]


def test_features_that_were_written_into_are_other_ones() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.last = nn.Linear(4, 2)

        def forward(self, features: Tensor) -> Tensor:
            features = self.before(features)
            one = self.first(features * 1)
            features.mul_(2)
            return self.last(one * self.second(features))

    model, inputs = Written(), torch.randn(3, 4)
    outputs = model(inputs)
    outputs.square().sum().backward()
    words = {"first": "colwise", "second": "colwise", "last": "rowwise"}
    for found, gradients, _ in split_step(model, words, inputs, 2):
        torch.testing.assert_close(found, outputs.detach())
        torch.testing.assert_close(gradients["before.weight"], model.before.weight.grad)

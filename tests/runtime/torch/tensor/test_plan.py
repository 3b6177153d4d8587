"""A plan names layers by paths, says of each how it is split, and takes nothing that can't be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from src.config import ConfigError
from src.runtime.torch.tensor.plan import resolve, typed


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.norm = nn.Linear(6, 12), nn.Linear(12, 6), nn.LayerNorm(6)


class Model(nn.Module):
    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 6), nn.Linear(6, 8, bias=False)
        self.layers = nn.ModuleList([Block(), Block()])
        if tied:
            self.head.weight = self.embedding.weight


def test_a_star_stands_for_one_name() -> None:
    plan = typed(["layers.*.w1:colwise", "layers.1.w2:rowwise"], Model(), 2)
    assert plan.words == {"layers.0.w1": "colwise", "layers.1.w1": "colwise", "layers.1.w2": "rowwise"}
    assert plan.show(Model()).splitlines() == [
        "layers are split by strategy.plan; they have 62 % of the parameters:",
        "  layers.*.w1: colwise (2 layers)",
        "  layers.1.w2: rowwise",
    ]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({"head": "colwise_gather_output"}, {"embedding": "embedding_rowwise"}),
        ({"embedding": "embedding_rowwise"}, {"head": "colwise_gather_output"}),
    ],
)
def test_layers_that_share_a_weight_are_split_alike(words: dict[str, str], found: dict[str, str]) -> None:
    assert resolve("a test", words, Model(), 2).words == words | found
    assert resolve("a test", words, Model(tied=False), 2).words == words


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (["layers.*.w3:colwise"], "layers.*.w3 names no layer of the model; did you mean layers"),
        (["layers.*.w1:columnwise"], "did you mean colwise?"),
        (["layers.*.w1"], "must be PATH:HOW, as layers.*.w1:colwise"),
        (
            ["layers.*.norm:colwise"],
            "layers.0.norm is to be colwise, which splits an nn.Linear, and is a LayerN",
        ),
        (["embedding:colwise"], "splits an nn.Linear, and is a Embedding"),
        (["layers.*.w1:colwise", "layers.*.w2:embedding_rowwise"], "which splits an nn.Embedding"),
        (["head:rowwise"], "embedding shares a weight with a layer that is rowwise"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(entries: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        typed(entries, Model(), 2)
    assert says in str(error.value)


def test_features_must_divide_by_the_ranks() -> None:
    with pytest.raises(ConfigError, match="out_features=12, which workers=5 don't divide; choose workers=4"):
        typed(["layers.*.w1:colwise"], Model(), 5)
    # Rows of a vocabulary needn't, but each rank must have one.
    assert resolve("a test", {"head": "colwise_gather_output"}, Model(), 3).ranks == 3
    with pytest.raises(ConfigError, match="has 8 rows, too few to split among 7 ranks"):
        resolve("a test", {"head": "colwise_gather_output"}, Model(), 7)


def test_a_plan_of_an_architecture_may_name_what_a_model_lacks() -> None:
    words = {"layers.*.w1": "colwise", "layers.*.w3": "colwise"}
    assert len(resolve("a test", words, Model(), 2, lenient=True).words) == 2
    with pytest.raises(ConfigError, match="none of the paths of a test names a layer"):
        resolve("a test", {"blocks.*.w1": "colwise"}, Model(), 2, lenient=True)


def test_a_layer_of_another_computation_is_none() -> None:
    class Doubled(nn.Linear):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(features)

    with pytest.raises(
        ConfigError, match=r"0 is to be colwise, which splits an nn\.Linear, and is a Doubled"
    ):
        typed(["0:colwise"], nn.Sequential(Doubled(4, 4)), 2)

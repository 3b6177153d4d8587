"""A model is cut where its authors would, between the parts of `base_model_pp_plan`, if that costs little."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from src.partition.torch.graph import operations


class Base(nn.Module):
    """Has a list of layers, and one behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)])
        self.norm = nn.LayerNorm(4)

    def forward(self, features: Tensor) -> Tensor:
        features = torch.relu(self.stem(features))
        for layer in self.layers:
            features = features + layer(features)
        return self.norm(features)


class WithHead(nn.Module):
    base_model_pp_plan = ("stem", "layers", "norm", "gone")

    def __init__(self) -> None:
        super().__init__()
        self.base = Base()
        self.head = nn.Linear(4, 2)

    @property
    def base_model(self) -> nn.Module:
        return self.base

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.base(features))


def test_boundaries_lie_before_each_layer_of_a_list_and_each_other_part() -> None:
    graph = operations(WithHead(), torch.randn(3, 4))
    # The first stage begins with the stem anyway.
    begins = [graph.names[place] for place in graph.preferred]
    assert begins == ["base.layers.0.0", "base.layers.1.0", "base.layers.2.0", "base.norm"]
    assert operations(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)).preferred == ()


def test_a_llama_is_cut_between_its_layers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=3, use_cache=False, **sizes))
    graph = operations(model, torch.randint(0, 32, (2, 8)))
    begins = [graph.names[place].rpartition(".")[0] for place in graph.preferred]
    assert begins == [f"model.layers.{number}.input_layernorm" for number in range(3)] + ["model.norm"]
    profile = graph.profile(graph.values(torch.randint(0, 32, (2, 8))))
    assert profile.preferred == graph.preferred
    # Between two layers little crosses: what one gives the next, and the tables of all.
    assert len(profile.crossing[graph.preferred[1]]) <= 4

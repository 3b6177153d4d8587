"""Blocks that have parts of the tokens compute what whole ones do, in float64, on ranks as threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from src.config import ConfigError
from src.models.torch.transformer import Block, BlockConfig
from src.runtime.torch.tensor.group import TensorGroup
from src.runtime.torch.tensor.plan import parallelize, resolve
from src.runtime.torch.tensor.sequence import blocks_of, divide
from tests.runtime.torch.tensor.threads import split_step

PLAN = {
    **dict.fromkeys(("layers.*.attention.wq", "layers.*.attention.wk", "layers.*.attention.wv"), "colwise"),
    **dict.fromkeys(("layers.*.attention.wo", "layers.*.feed_forward.w2"), "rowwise"),
    "layers.*.feed_forward.w1": "colwise",
}
PARTS = {
    0: ["attention.wq.weight", "attention.wk.bias", "feed_forward.w1.weight"],
    1: ["attention.wo.weight"],
}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Blocks(nn.Module):
    """Two blocks of LayerNorm, attention and a feed-forward layer, all with biases."""

    def __init__(self, block: type[nn.Module] = Block) -> None:
        super().__init__()
        config = BlockConfig(12, 6, 6, 24, "gelu", causal=True, bias=True)
        self.first, self.layers = nn.Linear(3, 12), nn.ModuleList(block(config) for _ in range(2))
        self.norm = nn.LayerNorm(12)

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.first(tokens)
        for layer in self.layers:
            features = layer(features)
        return self.norm(features)


class Mixing(Block):
    """Shifts tokens outside of what is split: of its own tokens a rank can't."""

    def forward(self, tokens: Tensor, positions: None = None) -> Tensor:
        return super().forward(tokens.roll(1, 1))


def whole_step(model: nn.Module, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    outputs = model(inputs)
    outputs.square().sum().backward()
    return outputs.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("tokens", [6, 7, 2])
@pytest.mark.parametrize("size", [2, 3])
def test_parts_of_tokens_give_the_gradients_of_all(tokens: int, size: int) -> None:
    # 7 tokens don't divide, and of 2 tokens the third rank has none.
    model, inputs = Blocks(), torch.randn(4, tokens, 3)
    found = split_step(model, PLAN, inputs, size, sequence=True)
    outputs, gradients = whole_step(model, inputs)
    for rank, (own, parts, _) in enumerate(found):
        torch.testing.assert_close(own, outputs)
        assert parts.keys() == gradients.keys()
        for name, whole in gradients.items():
            dim = next((dim for dim, names in PARTS.items() if name.endswith(tuple(names))), None)
            if parts[name].shape == whole.shape:
                torch.testing.assert_close(parts[name], whole, msg=name)
            elif dim is not None:
                torch.testing.assert_close(parts[name], whole.chunk(size, dim)[rank], msg=name)


@pytest.mark.parametrize("size", [2, 3])
def test_of_norms_and_what_layers_take_a_part_is_kept(size: int) -> None:
    # What a block's two norms take and return: of two blocks eight activations.
    activation = 16 * 64 * 12 * 8
    saved = _bytes_after_forward(size, sequence=False) - _bytes_after_forward(size, sequence=True)
    assert saved == pytest.approx(8 * activation * (1 - 1 / size), rel=0.2)


def _bytes_after_forward(size: int, *, sequence: bool) -> int:
    model, inputs, group = Blocks(), torch.randn(16, 64, 3), TensorGroup(size, 0)
    parallelize(model, dataclasses.replace(resolve("a test", PLAN, model, size), sequence=sequence), group)
    group.region.watches = False
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        outputs = model(inputs)
    assert outputs.requires_grad
    return sum(each.self_cpu_memory_usage for each in profiled.key_averages())


def test_what_mixes_tokens_outside_of_split_layers_is_another_model() -> None:
    model, inputs = Blocks(Mixing), torch.randn(4, 6, 3)
    (own, _, _), _ = split_step(model, PLAN, inputs, 2, sequence=True)
    assert not torch.allclose(own, whole_step(model, inputs)[0])


def test_blocks_are_what_lists_have() -> None:
    assert blocks_of({"layers.0.w2": "rowwise", "layers.1.w2": "rowwise", "layers.0.w1": "colwise"}) == [
        "layers"
    ]
    assert blocks_of({"encoder.block.0.w2": "rowwise", "decoder.block.0.w2": "rowwise"}) == [
        "encoder.block", "decoder.block",
    ]  # fmt: skip
    assert blocks_of({"head.1": "rowwise"}) == []
    with pytest.raises(ConfigError, match="blocks that follow each other in a list"):
        divide(nn.Sequential(), {"0": "colwise", "1": "rowwise"}, TensorGroup(2, 0))

"""Build what the transformers here have in common: attention, a feed-forward layer, and a block of both.

Each projection is a layer of its own, and the number of heads is that of a projection's output: a worker that
has some columns of `wq`, `wk` and `wv`, and so some of the heads, runs the same code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from src.config import ConfigError
from src.models.torch.rotary import rotate

# Weights are drawn from a normal distribution (Radford 2019's code).
DEVIATION = 0.02


@dataclass(frozen=True)
class BlockConfig:
    """The sizes of a block, and its kind.

    Attributes:
        width: how many features a token has.
        heads: of queries, which share the width.
        kv_heads: of keys and values, each shared by `heads / kv_heads` heads of queries.
        hidden: the units of the feed-forward layer.
        activation: `swiglu` or `gelu`.
        causal: whether a token attends to those up to itself alone.
        bias: whether projections have biases, and norms are LayerNorm instead of RMSNorm.
    """

    width: int
    heads: int
    kv_heads: int
    hidden: int
    activation: Literal["swiglu", "gelu"]
    causal: bool
    bias: bool

    def __post_init__(self) -> None:
        """Raise `ConfigError` where heads don't divide evenly."""
        check_divides("model.heads", self.heads, self.width, f"model.width={self.width}")
        check_divides("model.kv_heads", self.kv_heads, self.heads, f"model.heads={self.heads}")

    @property
    def head_width(self) -> int:
        """Return how many features a head has."""
        return self.width // self.heads

    def norm(self) -> nn.Module:
        """Make a norm of a token's features: LayerNorm, or RMSNorm (Zhang & Sennrich 2019, equation 4)."""
        return nn.LayerNorm(self.width, eps=1e-6) if self.bias else nn.RMSNorm(self.width, eps=1e-5)


def check_divides(key: str, value: int, whole: int, named: str) -> None:
    """Raise `ConfigError` unless the `value` of a key divides `whole`, which a message calls as `named`."""
    if whole % value:
        divisors = (number for number in range(1, whole + 1) if whole % number == 0)
        nearest = min(divisors, key=lambda number: abs(number - value))
        raise ConfigError(f"{key}={value}: must divide {named}; the nearest that does is {nearest}")


class Attention(nn.Module):
    """Scaled dot-product attention of several heads (Vaswani 2017), of grouped ones (Ainslie 2023)."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        kv_width = config.kv_heads * config.head_width
        self.wq = nn.Linear(config.width, config.width, bias=config.bias)
        self.wk = nn.Linear(config.width, kv_width, bias=config.bias)
        self.wv = nn.Linear(config.width, kv_width, bias=config.bias)
        self.wo = nn.Linear(config.width, config.width, bias=config.bias)
        self.head_width, self.causal = config.head_width, config.causal
        self.grouped = config.kv_heads != config.heads

    def forward(self, tokens: Tensor, positions: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return what tokens [batch, length, width] take from each other, in the same shape.

        `positions` are the rotations of queries and keys, as `rotations` gives them; without them they aren't
        rotated.
        """
        query, key, value = (
            projection(tokens).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for projection in (self.wq, self.wk, self.wv)
        )
        if positions is not None:
            query, key = rotate(query, *positions), rotate(key, *positions)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=self.grouped
        )
        return self.wo(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two layers with GELU between them, or SwiGLU (Shazeer 2020, equation 6) of three matrices."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.width, config.hidden, bias=config.bias)
        self.w2 = nn.Linear(config.hidden, config.width, bias=config.bias)
        gated = config.activation == "swiglu"
        self.w3 = nn.Linear(config.width, config.hidden, bias=config.bias) if gated else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Return features of the same shape [batch, length, width]."""
        if self.w3 is None:
            return self.w2(functional.gelu(self.w1(tokens)))
        return self.w2(functional.silu(self.w1(tokens)) * self.w3(tokens))


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and added to what it has read."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = config.norm(), Attention(config)
        self.feed_forward_norm, self.feed_forward = config.norm(), FeedForward(config)

    def forward(self, tokens: Tensor, positions: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return features of the same shape [batch, length, width]; `positions` are those of `Attention`."""
        tokens = tokens + self.attention(self.attention_norm(tokens), positions)
        return tokens + self.feed_forward(self.feed_forward_norm(tokens))


def initialize(model: nn.Module, layers: int) -> None:
    """Draw the weights of a model's linear layers and embeddings as GPT-2 does; biases are 0.

    What is added to a token's features begins smaller, by the square root of how often that is done
    (Radford 2019, section 2.3).
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            is_added = name.endswith((".wo", ".w2"))
            nn.init.normal_(module.weight, std=DEVIATION / math.sqrt(2 * layers) if is_added else DEVIATION)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

"""Build a decoder-only transformer of text, with the parts that LLaMA has (Touvron 2023, section 2.2).

Blocks of GPT-2's form (Radford 2019), without biases: RMSNorm before attention and feed-forward layer, rotary
positions, grouped heads of keys and values, SwiGLU or GELU.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from src.config import ConfigError
from src.models.torch.rotary import rotations
from src.models.torch.transformer import Block, BlockConfig, initialize

# Hidden units of SwiGLU are a multiple of it.
HIDDEN_MULTIPLE = 64


class GPT(nn.Module):
    """A network from tokens [batch, length] to logits [batch, length, vocabulary] of those that follow."""

    # A cut lies before one of these: `src.partition.torch.preferred`.
    base_model_pp_plan = ("embedding", "layers", "norm")

    def __init__(self, vocabulary: int, length: int, layers: int, block: BlockConfig, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, block.width)
        self.layers = nn.ModuleList(Block(block) for _ in range(layers))
        self.norm = block.norm()
        self.head = nn.Linear(block.width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        cosines, sines = rotations(length, block.head_width)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        initialize(self, layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [batch, length, vocabulary]; each depends on the tokens up to its own."""
        features = self.embedding(tokens)
        for layer in self.layers:
            features = layer(features, (self.cosines, self.sines))
        return self.head(self.norm(features))


def build(
    *,
    classes: int,
    shape: tuple[int, ...],
    vocabulary: int | None,
    layers: int,
    width: int,
    heads: int,
    kv_heads: int | None,
    hidden: int | None,
    activation: Literal["swiglu", "gelu"],
    tied: bool,
) -> nn.Module:
    """Build a model of sequences with `shape` (length,) of `vocabulary` tokens.

    Args:
        classes: as many as tokens.
        shape: of a sample.
        vocabulary: how many tokens there are; `None` of images.
        layers: how many blocks.
        width: how many features a token has.
        heads: of queries.
        kv_heads: of keys and values; `None` for as many.
        hidden: units of a feed-forward layer; `None` for 4 x width, or so many that SwiGLU's three matrices
            are about as large as two of these.
        activation: of the feed-forward layers.
        tied: whether the head's weight is the embedding's.

    Raises:
        ConfigError: for images, and for sizes that don't go together.
    """
    if vocabulary is None:
        raise ConfigError(
            "model=gpt: takes text, and the dataset has images; choose dataset=gcide or textfile, or "
            "model=vit"
        )
    if hidden is None:
        hidden = (
            4 * width if activation == "gelu" else -(-8 * width // (3 * HIDDEN_MULTIPLE)) * HIDDEN_MULTIPLE
        )
    block = BlockConfig(width, heads, kv_heads or heads, hidden, activation, causal=True, bias=False)
    if block.head_width % 2:
        raise ConfigError(
            f"model.heads={heads}: leaves {block.head_width} of model.width={width} to a head, and positions "
            f"turn pairs of them; choose a width that divides by {2 * heads}"
        )
    return GPT(vocabulary, shape[0], layers, block, tied=tied)

"""Build a vision transformer (Dosovitskiy 2021, section 3.1), in torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from src.config import ConfigError
from src.models.torch.transformer import DEVIATION, Block, BlockConfig, check_divides, initialize

IMAGE_AXES = 3


class ViT(nn.Module):
    """A network from images [batch, channels, height, width] to logits [batch, classes].

    Tokens are an image's patches, and one of the model's own, from whose features the class is told.
    """

    # A cut lies before one of these: `src.partition.torch.preferred`.
    base_model_pp_plan = ("layers", "norm")

    def __init__(
        self, classes: int, shape: tuple[int, int, int], patch: int, layers: int, block: BlockConfig
    ) -> None:
        super().__init__()
        height, width, channels = shape
        tokens = 1 + (height // patch) * (width // patch)
        self.patches = nn.Conv2d(channels, block.width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, block.width))
        self.positions = nn.Parameter(torch.empty(1, tokens, block.width).normal_(std=DEVIATION))
        self.layers = nn.ModuleList(Block(block) for _ in range(layers))
        self.norm = block.norm()
        self.head = nn.Linear(block.width, classes)
        initialize(self, layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [batch, classes] of images."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        own = self.class_token.expand(patches.shape[0], -1, -1)
        features = torch.cat((own, patches), dim=1) + self.positions
        for layer in self.layers:
            features = layer(features)
        return self.head(self.norm(features[:, 0]))


def build(
    *,
    classes: int,
    shape: tuple[int, ...],
    patch: int,
    layers: int,
    width: int,
    heads: int,
    hidden: int | None,
) -> nn.Module:
    """Build a vision transformer of images with `shape` (height, width, channels).

    It has a token for each patch of `patch` x `patch` pixels, `layers` blocks of `width` features and `heads`
    heads, and `hidden` units in a feed-forward layer, by default 4 x width.

    Raises:
        ConfigError: for text, and for sizes that don't go together.
    """
    if len(shape) != IMAGE_AXES:
        raise ConfigError(
            "model=vit: takes images, and the dataset is text; choose dataset=mnist or folder, or model=gpt"
        )
    rows, columns, channels = shape
    check_divides("model.patch", patch, math.gcd(rows, columns), f"the images' {rows} x {columns} pixels")
    block = BlockConfig(width, heads, heads, hidden or 4 * width, "gelu", causal=False, bias=True)
    return ViT(classes, (rows, columns, channels), patch, layers, block)

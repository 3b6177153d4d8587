"""Build EAST, which finds words in images of scenes (Zhou et al. 2017, figure 3).

    images -> trunk: features at 1/4, 1/8, 1/16 and 1/32 of the resolution
                         |      |      |       |
              merging:   + <--- + <--- + <-----+      enlarged twofold, joined, convolved
                         |
              heads:     +-> score, geometry          at 1/4

Every level stays live until it is merged, so that tensors of several resolutions cross most cuts. Operations
are named after the three components: `trunk`, `merging`, `heads`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from src.config import ConfigError
from src.models.torch.east import trunks

# Pixels of an image to one of the trunk's coarsest features.
COARSEST = 32
# To the top, right, bottom and left side of a word's box.
DISTANCES = 4
# Channels of the merged features, from the coarsest level to the finest (figure 3).
MERGED = (128, 64, 32)
# Share of pixels that are taken for text before anything is learned.
TEXT_SHARE = 0.02
# Share of the greatest distance that distances begin with.
FIRST_SHARE = 0.05


class Merging(nn.Module):
    """A branch that joins features of four resolutions, from the coarsest one to the finest."""

    def __init__(self, channels: tuple[int, ...], merged: tuple[int, ...]) -> None:
        """Join features of so many `channels`, from the finest, into `merged` channels, from the coarsest."""
        super().__init__()
        finer = channels[-2::-1]
        incoming = (channels[-1], *merged[:-1])
        self.reduce = nn.ModuleList(
            trunks.convolution(coarse + fine, result, 1)
            for coarse, fine, result in zip(incoming, finer, merged, strict=True)
        )
        self.join = nn.ModuleList(trunks.convolution(result, result, 3) for result in merged)
        self.last = trunks.convolution(merged[-1], merged[-1], 3)

    def forward(self, *features: Tensor) -> Tensor:
        """Return features [batch, channels, rows, columns] of the finest ones' resolution, given first."""
        *finer, joined = features
        for reduce, join in zip(self.reduce, self.join, strict=True):
            fine = finer.pop()
            enlarged = functional.interpolate(joined, scale_factor=2, mode="bilinear", align_corners=False)
            joined = join(reduce(torch.cat([enlarged, fine], dim=1)))
        return self.last(joined)


class Heads(nn.Module):
    """The score and the geometry of each pixel, of features that both share."""

    def __init__(self, channels: int, reach: int) -> None:
        """Read so many channels; distances are between 0 and `reach` pixels of the image."""
        super().__init__()
        self.score = nn.Conv2d(channels, 1, 1)
        self.distances = nn.Conv2d(channels, DISTANCES, 1)
        self.angle = nn.Conv2d(channels, 1, 1)
        self.reach = reach
        for head, share in ((self.score, TEXT_SHARE), (self.distances, FIRST_SHARE)):
            assert head.bias is not None
            nn.init.constant_(head.bias, _logit(share))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return score logits [batch, 1, rows, columns] and the geometry [batch, 5, rows, columns].

        That is four distances in pixels of the image, and an angle in radians between -pi/4 and pi/4.
        """
        distances = self.distances(features).sigmoid() * self.reach
        angle = self.angle(features).tanh() * (math.pi / 4)
        return self.score(features), torch.cat([distances, angle], dim=1)


class East(nn.Module):
    """A network from images [batch, channels, height, width] to the score and geometry of words."""

    def __init__(self, trunk: nn.Module, merging: Merging, heads: Heads) -> None:
        super().__init__()
        self.trunk = trunk
        self.merging = merging
        self.heads = heads

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return score logits and the geometry, as the heads do, at a quarter of the images' resolution."""
        return self.heads(self.merging(*self.trunk(images)))


def build(
    *, classes: int, shape: tuple[int, int, int], trunk: str, width: int, pretrained: str | None = None
) -> nn.Module:
    """Build EAST for images with `shape` (height, width, channels).

    `trunk`, `width` and `pretrained` are as `trunks.build` takes them. With the small trunk the merged
    features have as many channels as its own; otherwise as many as published (figure 3).

    Raises:
        ConfigError: for images whose sides aren't multiples of 32 pixels.
    """
    if any(side % COARSEST for side in shape[:2]):
        raise ConfigError(
            f"model=east: images of {shape[1]} x {shape[0]} pixels don't fit it; "
            f"each side must be a multiple of {COARSEST}"
        )
    body = trunks.build(trunk, shape[2], width, pretrained)
    merged = body.channels[-2::-1] if trunk == "small" else MERGED
    return East(body, Merging(body.channels, merged), Heads(merged[-1], max(shape[:2])))


def _logit(share: float) -> float:
    return math.log(share / (1 - share))

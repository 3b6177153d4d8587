"""Build a U-Net (Ronneberger 2015) that classifies: its pixels' features are averaged into logits.

Each level of the way down is joined to its level of the way up, so that values stay live across most
of the network: the model that a cut in two finds hardest.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Build two 3x3 convolutions with BatchNorm and ReLU, which keep the size of an image."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [
            nn.Conv2d(width, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A network from images [batch, channels, height, width] to logits [batch, classes]."""

    def __init__(self, channels: int, classes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(block(a, b) for a, b in zip([channels, *widths], widths, strict=False))
        self.up = nn.ModuleList(block(a + b, a) for a, b in itertools.pairwise(widths))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [batch, classes] of images."""
        skips = []
        features = images
        for level, down in enumerate(self.down):
            features = down(features if level == 0 else self.pool(features))
            skips.append(features)
        for level in reversed(range(len(self.up))):
            # The skip's own size is asked for, because pooling may have rounded it.
            grown = functional.interpolate(features, size=skips[level].shape[-2:], mode="nearest")
            features = self.up[level](torch.cat([skips[level], grown], dim=1))
        return self.head(features).mean(dim=(2, 3))


def build(*, classes: int, shape: tuple[int, int, int], width: int, depth: int) -> nn.Module:
    """Build a U-Net of images with `shape` (height, width, channels).

    It has `width` channels at the top, twice as many at each level below, and `depth` levels below the top.
    """
    return UNet(shape[2], classes, width, depth)

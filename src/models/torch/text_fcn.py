"""Build a small fully convolutional network that marks text at a quarter of the image's resolution."""

from __future__ import annotations

from torch import Tensor, nn


class DilatedBlock(nn.Module):
    """A residual 3x3 convolution with BatchNorm, over pixels `dilation` apart."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.activation = nn.ReLU()

    def forward(self, features: Tensor) -> Tensor:
        """Return features of the same shape [samples, width, rows, columns]."""
        return features + self.activation(self.norm(self.convolution(features)))


def build(*, classes: int, shape: tuple[int, int, int], width: int, blocks: int) -> nn.Module:
    """Build a model of images [batch, channels, height, width] with logits [batch, classes, rows, columns].

    `shape` is (height, width, channels); rows and columns are a quarter of them. Block k looks at pixels
    2**k apart, so that `blocks` of them see (2**blocks - 1) * 8 + 7 pixels of the image across.
    """
    stem = [
        layer
        for inputs, outputs in ((shape[2], width // 2), (width // 2, width))
        for layer in (
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )
    ]
    body = [DilatedBlock(width, 2**block) for block in range(blocks)]
    return nn.Sequential(*stem, *body, nn.Conv2d(width, classes, 1))

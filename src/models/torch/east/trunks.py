"""Build trunks: networks that give an image's features at four resolutions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torchvision.models as library
from torch import Tensor, nn

from src.config import ConfigError
from src.models.torch import pretrained as weights

RESNET_STEM = ("conv1", "bn1", "relu", "maxpool")
# Places of VGG16's poolings among its layers, with BatchNorm.
POOLINGS = (6, 13, 23, 33, 43)


class Trunk(nn.Module):
    """A stem that halves an image's resolution at least once, and four stages, each of which gives features.

    Attributes:
        channels: of the features of each stage, from the finest.
    """

    def __init__(self, stem: nn.Module, stages: Sequence[nn.Module], channels: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.channels = channels

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the stages' features, at 1/4, 1/8, 1/16 and 1/32 of the images' resolution."""
        features, found = self.stem(images), []
        for stage in self.stages:
            features = stage(features)
            found.append(features)
        return tuple(found)


class Residual(nn.Module):
    """A residual block of two 3x3 convolutions with BatchNorm (He 2016, figure 2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = convolution(width, width, 3)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.activation = nn.ReLU()

    def forward(self, features: Tensor) -> Tensor:
        """Return features of the same shape [batch, width, rows, columns]."""
        return self.activation(features + self.norm(self.second(self.first(features))))


def build(trunk: str, channels: int, width: int, pretrained: str | None) -> Trunk:
    """Build a trunk for images with so many channels.

    `small` has `width` channels at a quarter of the resolution, and twice as many a stage further down.
    `resnet50` and `vgg16` (with BatchNorm, so that it trains without published weights) are torchvision's;
    `pretrained` is the path of a file of weights for them.

    Raises:
        ConfigError: for weights of a trunk that has none, or that don't fit.
    """
    if trunk == "small" and pretrained is not None:
        raise ConfigError(
            f"model.pretrained={pretrained}: is for the trunks resnet50 and vgg16, not for small"
        )
    path = None if pretrained is None else Path(pretrained)
    if trunk == "small":
        return _small(channels, width)
    if trunk == "resnet50":
        resnet = library.resnet50(num_classes=1)
        resnet.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        weights.load(resnet, path)
        stem = nn.Sequential(*(resnet.get_submodule(name) for name in RESNET_STEM))
        levels = [module for name, module in resnet.named_children() if name.startswith("layer")]
        return Trunk(stem, levels, (256, 512, 1024, 2048))
    vgg = library.vgg16_bn(num_classes=1)
    vgg.features[0] = nn.Conv2d(channels, 64, 3, padding=1)
    weights.load(vgg, path)
    layers = list(vgg.features.children())
    first, *ends = (place + 1 for place in POOLINGS)
    parts = [nn.Sequential(*layers[begin:end]) for begin, end in zip((first, *ends), ends, strict=False)]
    return Trunk(nn.Sequential(*layers[:first]), parts, (128, 256, 512, 512))


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Build a convolution with BatchNorm and ReLU that divides the size of images by its stride."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def _small(channels: int, width: int) -> Trunk:
    widths = tuple(width * 2**level for level in range(4))
    incoming = (width // 2, *widths)
    stages: list[nn.Module] = [
        nn.Sequential(convolution(before, after, 3, stride=2), Residual(after))
        for before, after in zip(incoming, widths, strict=False)
    ]
    return Trunk(convolution(channels, width // 2, 3, stride=2), stages, widths)

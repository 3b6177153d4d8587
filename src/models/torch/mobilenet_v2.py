"""Build torchvision's MobileNetV2 with the data's input channels."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from torchvision.models import mobilenet_v2

from src.models.torch import pretrained as weights


def build(
    *, classes: int, shape: tuple[int, int, int], stem: str, dropout: float, pretrained: str | None = None
) -> nn.Module:
    """Build a model of images [batch, channels, height, width] with logits [batch, classes].

    `shape` is (height, width, channels). `stem="small"` gives the first convolution stride 1, so that an
    image of 28x28 isn't a single pixel at the end. `pretrained` is the path of a file of weights.
    """
    model = mobilenet_v2(num_classes=classes, dropout=dropout)
    stride = 1 if stem == "small" else 2
    model.features[0][0] = nn.Conv2d(shape[2], 32, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(model.features[0][0].weight, mode="fan_out")
    return weights.load(model, None if pretrained is None else Path(pretrained))

"""torchvision's ResNet-18 with the data's input channels and a first kernel for small images."""

from __future__ import annotations

from torch import nn
from torchvision.models import resnet18


def build(*, classes: int, shape: tuple[int, int, int], stem: str) -> nn.Module:
    """Logits [batch, classes] from images [batch, channels, height, width]; `shape` is (H, W, C).

    `stem="3x3"` is paper 5's (section III.C): the first kernel is 3x3, stride 2 and max-pooling stay.
    """
    model = resnet18(num_classes=classes)
    kernel = {"3x3": 3, "7x7": 7}[stem]
    model.conv1 = nn.Conv2d(shape[2], 64, kernel, stride=2, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model

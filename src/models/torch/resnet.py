"""Build torchvision's ResNets with the data's input channels and a first kernel for small images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torchvision.models as library
from torch import nn

from src.models.torch import pretrained as weights


def resnet18(**options: Any) -> nn.Module:
    """Build ResNet-18 (He 2016, Table 1); see `_build` for the options."""
    return _build(library.resnet18, **options)


def resnet50(**options: Any) -> nn.Module:
    """Build ResNet-50; see `_build` for the options."""
    return _build(library.resnet50, **options)


def resnet101(**options: Any) -> nn.Module:
    """Build ResNet-101, paper 4's model; see `_build` for the options."""
    return _build(library.resnet101, **options)


def _build(
    builder: Callable[..., nn.Module],
    *,
    classes: int,
    shape: tuple[int, int, int],
    stem: str,
    pretrained: str | None = None,
) -> nn.Module:
    """Build a ResNet of images [batch, channels, height, width] with logits [batch, classes].

    `shape` is (height, width, channels). `stem="3x3"` is paper 5's (section III.C): the first kernel is 3x3,
    stride 2 and max-pooling stay. `small` has stride 1 and no max-pooling, as ResNets for 32x32 images do.
    `pretrained` is the path of a file of weights.
    """
    model = builder(num_classes=classes)
    kernel = 7 if stem == "7x7" else 3
    stride = 1 if stem == "small" else 2
    model.conv1 = nn.Conv2d(shape[2], 64, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    if stem == "small":
        model.maxpool = nn.Identity()
    return weights.load(model, None if pretrained is None else Path(pretrained))

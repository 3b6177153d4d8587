"""Build any torch model by its import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from src.models import adapt


def build(*, classes: int, shape: tuple[int, int, int], path: str, options: Mapping[str, Any]) -> nn.Module:
    """Build a module by the callable at the import path `path`; the module must return logits.

    The callable is called with `options`, and with those of `classes`, `num_classes` and `shape` that it
    takes and `options` don't hold. A first convolution of 3 channels is replaced by one of the data's
    channels.

    Raises:
        ConfigError: when `path` doesn't name a callable that takes `options` and returns a torch module.
    """
    arguments = {"classes": classes, "num_classes": classes, "shape": shape}
    model = adapt.call(path, arguments, options)
    adapt.check_kind(path, model, nn.Module)
    _match_channels(model, shape[2])
    return model


def _match_channels(model: nn.Module, channels: int) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            if layer.in_channels == 3 and channels != 3:
                parent = model.get_submodule(name.rpartition(".")[0])
                options: dict[str, Any] = {
                    key: getattr(layer, key) for key in ("kernel_size", "stride", "padding", "dilation")
                }
                bias = layer.bias is not None
                replaced = nn.Conv2d(channels, layer.out_channels, bias=bias, **options)
                setattr(parent, name.rpartition(".")[2], replaced)
            return

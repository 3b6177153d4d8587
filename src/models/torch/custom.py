"""Any torch model by its import path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from src.models.adapt import accepted, import_path


def build(*, classes: int, shape: tuple[int, int, int], path: str, options: Mapping[str, Any]) -> nn.Module:
    """The module that the callable at `path` returns, given `options` and what it takes of
    `classes`, `num_classes` and `shape`; a first convolution for 3 channels is made anew for the data's.

    Raises:
        TypeError: when `path` doesn't name a callable that returns a torch module.
    """
    factory = import_path(path)
    given = {"classes": classes, "num_classes": classes, "shape": shape}
    if not callable(factory):
        raise TypeError(f"model.path={path} is a {type(factory).__name__}, not a callable")
    model = factory(**accepted(inspect.signature(factory), given), **options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model.path={path} returned a {type(model).__name__}, not a torch.nn.Module")
    _match_channels(model, shape[2])
    return model


def _match_channels(model: nn.Module, channels: int) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            if layer.in_channels == 3 and channels != 3:
                parent = model.get_submodule(name.rpartition(".")[0])
                replaced = nn.Conv2d(
                    channels,
                    layer.out_channels,
                    layer.kernel_size,
                    layer.stride,
                    layer.padding,
                    layer.dilation,
                    bias=layer.bias is not None,
                )
                setattr(parent, name.rpartition(".")[2], replaced)
            return

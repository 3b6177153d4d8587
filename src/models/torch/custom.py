"""Build any torch model by its import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from src.compat.torch import has_hooks
from src.config import ConfigError
from src.models import adapt
from src.models.torch.unchanged import evaluating

# The channels of colours, for which many models are built.
COLOURS = 3


def build(*, classes: int, shape: tuple[int, int, int], path: str, options: Mapping[str, Any]) -> nn.Module:
    """Build a module by the callable at the import path `path`; the module must return logits.

    The callable is called with `options`, and with those of `classes`, `num_classes` and `shape` that it
    takes and `options` don't hold. A first convolution of 3 channels is replaced by one of the data's
    channels, unless the model takes the data as they are.

    Raises:
        ConfigError: when `path` doesn't name a callable that takes `options` and returns a torch module, or
            such a convolution is more than one of torch's own, and can't be replaced.
    """
    arguments = {"classes": classes, "num_classes": classes, "shape": shape}
    model = adapt.call(path, arguments, options)
    adapt.check_kind(path, model, nn.Module)
    _match_channels(model, shape, f"model.path={path}")
    return model


def _match_channels(model: nn.Module, shape: tuple[int, int, int], called: str) -> None:
    channels = shape[2]
    name, layer = next(
        ((name, each) for name, each in model.named_modules() if isinstance(each, nn.Conv2d)), ("", None)
    )
    if layer is None or layer.in_channels != COLOURS or channels == COLOURS or _takes(model, shape):
        return
    if why := _more_than_plain(layer):
        raise ConfigError(
            f"{called}: its first convolution, {name}, takes {COLOURS} channels, and the data have "
            f"{channels}; it {why}, and can't be replaced; build the model for {channels}"
        )
    kept = ("kernel_size", "stride", "padding", "dilation")
    options: dict[str, Any] = {key: getattr(layer, key) for key in kept}
    replaced = nn.Conv2d(channels, layer.out_channels, bias=layer.bias is not None, **options)
    setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], replaced)


def _takes(model: nn.Module, shape: tuple[int, int, int]) -> bool:
    """Return whether a model takes images of a shape as they are: it may make colours of grey itself."""
    if any(is_lazy(parameter) for parameter in model.parameters()):
        # It would draw its weights here.
        return False
    height, width, channels = shape
    try:
        with evaluating(model):
            model(torch.zeros(2, channels, height, width))
    except Exception:
        return False
    return True


def _more_than_plain(layer: nn.Conv2d) -> str:
    """Return what a convolution is besides its sizes, as a clause; nothing where that is all."""
    for is_so, said in (
        (type(layer) is not nn.Conv2d, f"is a {type(layer).__name__}"),
        (not isinstance(vars(layer)["_parameters"].get("weight"), nn.Parameter), "has a parametrized weight"),
        (layer.groups != 1, f"has groups={layer.groups}"),
        (layer.padding_mode != "zeros", f"has padding_mode={layer.padding_mode}"),
        (has_hooks(layer), "has hooks"),
        (not all(each.requires_grad for each in layer.parameters()), "is frozen"),
        (
            any(each.dtype != torch.get_default_dtype() for each in layer.parameters()),
            "has weights of another type",
        ),
    ):
        if is_so:
            return said
    return ""

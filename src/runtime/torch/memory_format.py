"""Lay the weights of convolutions out in channels_last, except where that is slower, or the model can't.

The values stay the same.

On CPUs channels_last saves a third of the small CNN's step. A convolution that sees a single pixel
(the last stage of a ResNet on 28x28 images) is the exception: there oneDNN copies its weights at
every step, a third of ResNet-18's time at batch 64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from src.models.torch.unchanged import evaluating, unchanged
from src.tasks.torch.outputs import model_outputs

# The largest relative norm by which a layout changes outputs by rounding.
ROUNDING = 1e-3


def lay_out(model: nn.Module, inputs: Sequence[Tensor]) -> str | None:
    """Lay the weights of the model's convolutions out for `inputs` [1, ...] like these.

    The sizes of the convolutions' inputs come from a forward pass in evaluation mode, which changes nothing.
    A model that can't run so, or gives other outputs, is left as it is, and given contiguous inputs.

    Returns why the model can't be laid out in channels_last, `None` where it is.
    """
    if not any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        _channels_last(model)
        return None
    with unchanged(model), evaluating(model):
        plain = model_outputs(model(*map(_contiguous, inputs)))
    _channels_last(model)
    single_pixel: list[nn.Conv2d] = []
    try:
        with unchanged(model), evaluating(model), _single_pixels(model, single_pixel):
            outputs = model_outputs(model(*inputs))
        failure = None if all(map(_alike, outputs, plain)) else "it computes something else"
    except Exception as error:
        failure = str(error).strip().splitlines()[0] or type(error).__name__
    if failure is not None:
        _channels_last(model, torch.contiguous_format)
        model.register_forward_pre_hook(contiguous_inputs)
        return failure
    for layer in single_pixel:
        layer.weight.data = layer.weight.data.contiguous()
    return None


def contiguous_inputs(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give a model, whose forward pre-hook this is, contiguous inputs."""
    return tuple(_contiguous(each) if isinstance(each, Tensor) else each for each in inputs)


def _contiguous(tensor: Tensor) -> Tensor:
    # With one channel a tensor is contiguous by any strides; convolutions look at these.
    return tensor.contiguous().view(-1).view(tensor.shape)


@torch.no_grad()
def _channels_last(model: nn.Module, layout: torch.memory_format = torch.channels_last) -> None:
    model.to(memory_format=layout)


@contextlib.contextmanager
def _single_pixels(model: nn.Module, found: list[nn.Conv2d]) -> Iterator[None]:
    """Add to `found` the convolutions that see a single pixel within the block."""

    def note(layer: nn.Conv2d, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].shape[-2:].numel() == 1:
            found.append(layer)

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    gap, norm = float((one - other).norm()), float(other.norm())
    return gap <= ROUNDING * norm or not norm < float("inf")

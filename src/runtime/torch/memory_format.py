"""Lay the weights of convolutions out in channels_last, except where that is slower, or the model can't.

The values stay the same.

On CPUs channels_last saves a third of the small CNN's step. A convolution that sees a single pixel
(the last stage of a ResNet on 28x28 images) is the exception: there oneDNN copies its weights at
every step, a third of ResNet-18's time at batch 64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from src.models.torch.unchanged import evaluating, unchanged
from src.tasks.torch.outputs import model_outputs

# The largest relative norm by which a layout changes outputs by rounding.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Layout:
    """A layout of a model's weights.

    Attributes:
        failure: why the model can't be laid out in channels_last; `None` where it can.
        single_pixel: names of the convolutions that aren't, for they see a single pixel.
    """

    failure: str | None = None
    single_pixel: tuple[str, ...] = ()

    def take(self, model: nn.Module) -> None:
        """Lay a model out so."""
        if self.failure is not None:
            _channels_last(model, torch.contiguous_format)
            model.register_forward_pre_hook(contiguous_inputs)
            return
        _channels_last(model)
        for name in self.single_pixel:
            weight = model.get_submodule(name).weight
            assert isinstance(weight, Tensor)
            weight.data = weight.data.contiguous()


def lay_out(model: nn.Module, inputs: Sequence[Tensor]) -> str | None:
    """Lay the weights of the model's convolutions out for `inputs` [1, ...] like these.

    The sizes of the convolutions' inputs come from a forward pass in evaluation mode, which changes nothing.
    A model that can't run so, or gives other outputs, is left as it is, and given contiguous inputs.

    Returns why the model can't be laid out in channels_last, `None` where it is.
    """
    found = find(model, inputs)
    found.take(model)
    return found.failure


def find(model: nn.Module, inputs: Sequence[Tensor]) -> Layout:
    """Return how a model is laid out for inputs [1, ...]; `take` lays it out."""
    if not any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        return Layout()
    with unchanged(model), evaluating(model):
        plain = model_outputs(model(*map(_contiguous, inputs)))
    _channels_last(model)
    single_pixel: list[str] = []
    try:
        with unchanged(model), evaluating(model), _single_pixels(model, single_pixel):
            outputs = model_outputs(model(*inputs))
        failure = None if all(map(_alike, outputs, plain)) else "it computes something else"
    except Exception as error:
        failure = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
    return Layout(failure, tuple(dict.fromkeys(single_pixel)))


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
def _single_pixels(model: nn.Module, found: list[str]) -> Iterator[None]:
    """Add to `found` the names of the convolutions that see a single pixel within the block."""

    def note(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].shape[-2:].numel() == 1:
            found.append(name)

    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
    hooks = [layer.register_forward_pre_hook(partial(note, name)) for name, layer in layers.items()]
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

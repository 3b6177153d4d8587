"""Build a model quickly whose weights nobody uses, and which is built many times.

Large tensors have the same few random numbers again and again, and how weights are laid out is found once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from src.runtime.torch import memory_format
from src.runtime.torch.memory_format import Layout

DRAWS = ("normal_", "uniform_")
# So many numbers are drawn; a larger tensor has them again and again. Rows of no usual length are equal so.
DRAWN = 65_521


@contextmanager
def drawn_again() -> Iterator[None]:
    """Have large tensors on the host be filled with the same few random numbers, within the block."""
    with ExitStack() as patches:
        for name in DRAWS:
            patches.enter_context(mock.patch.object(Tensor, name, _filling(getattr(Tensor, name))))
        yield


# How models are laid out, by what those that are alike have in common.
_layouts: dict[Hashable, Layout] = {}


@contextmanager
def laid_out_alike(options: Mapping[str, Any]) -> Iterator[None]:
    """Have models of the same options be laid out as the first one of this process, within the block."""
    find = memory_format.find

    def known(model: nn.Module, inputs: Sequence[Tensor]) -> Layout:
        named = [*model.named_parameters(), *((f"input {place}", each) for place, each in enumerate(inputs))]
        shapes = tuple((name, each.shape, each.dtype) for name, each in named)
        # Layers say of themselves how they stride; a user's file may have changed since.
        key = repr(options), repr(model), shapes, tuple(map(type, model.modules()))
        if key not in _layouts:
            _layouts[key] = find(model, inputs)
        return _layouts[key]

    with mock.patch.object(memory_format, "find", known):
        yield


def _filling(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method that draws a part of a large tensor, and fills the tensor with that."""

    def fill(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        plain = type(self) in (Tensor, nn.Parameter) and self.device.type == "cpu" and self.is_contiguous()
        if not plain or self.numel() <= DRAWN or (self.requires_grad and torch.is_grad_enabled()):
            return draw(self, *args, **kwargs)
        flat = self.detach().view(-1)
        drawn = draw(flat[:DRAWN], *args, **kwargs)
        whole, left = divmod(len(flat), DRAWN)
        flat[DRAWN : whole * DRAWN].view(-1, DRAWN).copy_(drawn.expand(whole - 1, DRAWN))
        flat[len(flat) - left :].copy_(drawn[:left])
        return self

    return fill

"""Draw random numbers of large tensors quickly, where a model is built whose weights nobody uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

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

"""Register what ranks exchange in split layers as operators of torch, which a traced graph keeps as they are.

A tracer writes down what autograd functions compute forward, and not their backward passes; of an operator it
writes down the call. Each has the backward pass of its counterpart in `src.runtime.torch.tensor.group`. What
they return is never a view of what they are given, as torch demands of them: `enter` costs a copy.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Protocol

import torch
from torch import Tensor

from src.partition.torch.traced import SPANS
from src.runtime.torch.tensor.region import Region


class Exchanges(Protocol):
    """The ranks among which tensors are split, as far as operators need them."""

    size: int
    region: Region

    def span(self, length: int) -> slice:
        """Return this rank's part of a dimension."""

    def sum(self, tensor: Tensor) -> None:
        """Sum a contiguous tensor over the ranks, in place."""

    def joined_parts(self, part: Tensor, length: int) -> Tensor:
        """Return all ranks' features [..., length], of which each has a part."""


# A graph holds numbers, no objects.
_GROUPS: weakref.WeakValueDictionary[int, Exchanges] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def number_of(group: Exchanges) -> int:
    """Return a new number, by which operators know a group of ranks for as long as it is there."""
    number = next(_NUMBERS)
    _GROUPS[number] = group
    return number


def _summed(tensor: Tensor, group: int) -> Tensor:
    whole = tensor.clone(memory_format=torch.contiguous_format)
    _GROUPS[group].sum(whole)
    return whole


def _keep_group(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.group = inputs[1]


@torch.library.custom_op("scaleguide::enter", mutates_args=())
def enter(activation: Tensor, group: int) -> Tensor:
    """Return a copy of an activation, whose gradients are summed over the ranks."""
    return activation.clone()


@torch.library.custom_op("scaleguide::begin", mutates_args=())
def begin(part: Tensor, group: int) -> Tensor:
    """Return a copy of the first split features of a region, which begins to draw from the rank's stream."""
    _GROUPS[group].region.begin(part.device)
    return part.clone()


@torch.library.custom_op("scaleguide::total", mutates_args=())
def total(part: Tensor, group: int) -> Tensor:
    """Return the sum of all ranks' parts of an activation, with which a region ends."""
    _GROUPS[group].region.end()
    return _summed(part, group)


@torch.library.custom_op("scaleguide::joined", mutates_args=())
def joined(part: Tensor, group: int, length: int) -> Tensor:
    """Return all ranks' features [..., length], of which each has a part."""
    # Without ranks to gather from it could be a view of the part.
    return _GROUPS[group].joined_parts(part, length).clone(memory_format=torch.contiguous_format)


@enter.register_fake
@begin.register_fake
def _(tensor: Tensor, group: int) -> Tensor:
    return torch.empty_like(tensor)


@total.register_fake
def _(part: Tensor, group: int) -> Tensor:
    return part.new_empty(part.shape)


@joined.register_fake
def _(part: Tensor, group: int, length: int) -> Tensor:
    return part.new_empty((*part.shape[:-1], length))


def _enter_backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _summed(gradient, context.group), None


def _pass_back(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return gradient, None


def _joined_backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return gradient[..., _GROUPS[context.group].span(gradient.shape[-1])].contiguous(), None, None


enter.register_autograd(_enter_backward, setup_context=_keep_group)
begin.register_autograd(_pass_back)
total.register_autograd(_pass_back)
joined.register_autograd(_joined_backward, setup_context=_keep_group)
# A rank's own stream is drawn from until the sum: both are in one stage.
SPANS[torch.ops.scaleguide.begin.default] = torch.ops.scaleguide.total.default

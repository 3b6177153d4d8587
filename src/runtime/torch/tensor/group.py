"""Pass activations to and from layers that ranks hold in parts, by the operators of Megatron-LM.

    x ── enter ── part of the first layer ── ... ── part of the last layer ── total ── y
         (f)                                                                  (g)

`enter` is the identity, and sums gradients over the ranks in the backward pass; `total` sums activations, and
is the identity in the backward pass (Shoeybi 2019, section 3, figure 3).
"""

from __future__ import annotations

import contextlib
import weakref
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from src.compat.live_tensors import uncounted
from src.compat.torch import version_of
from src.config import ConfigError
from src.measure.recorder import Recorder
from src.runtime.torch.tensor import operators
from src.runtime.torch.tensor.region import Region

AXIS = "tensor"


class TensorGroup:
    """The ranks among which tensors are split; all of them see the same samples.

    Attributes:
        size: how many ranks there are.
        rank: which of them this one is, from 0.
        region: the layers between a split of features and their sum, while one runs.
        traced: whether activations pass by operators that a traced graph keeps.
    """

    def __init__(self, size: int, rank: int, *, traced: bool = False) -> None:
        self.size, self.rank, self.traced = size, rank, traced
        self._number = operators.number_of(self)
        self.region = Region(rank)
        self._split: dict[int, tuple[nn.Parameter, int, nn.Parameter]] = {}
        # The activation that was given to layers last, and what they took of it.
        self._given: weakref.ref[Tensor] | None = None
        self._version, self._taken = 0, torch.empty(0)

    def span(self, length: int) -> slice:
        """Return this rank's part of a dimension; where it doesn't divide, first ranks have more of it."""
        each = -(-length // self.size)
        return slice(min(length, each * self.rank), min(length, each * (self.rank + 1)))

    def split(self, parameter: nn.Parameter, dim: int) -> nn.Parameter:
        """Return this rank's part of a parameter along `dim`; of a tied one the same parameter each time.

        Raises:
            ConfigError: for a tied parameter that was split along another dimension.
        """
        if id(parameter) not in self._split:
            with torch.no_grad():
                own = parameter.detach().movedim(dim, 0)[self.span(parameter.shape[dim])].movedim(0, dim)
                part = self._as_part(own.clone(memory_format=torch.contiguous_format), parameter, dim)
            # The whole one is kept from being collected, whose number another one might get.
            self._split[id(parameter)] = (
                parameter, dim, nn.Parameter(part, requires_grad=parameter.requires_grad)
            )  # fmt: skip
        _, other, part = self._split[id(parameter)]
        if other != dim:
            raise ConfigError(
                "strategy.plan: a weight that two layers share can't be split along both of its dimensions"
            )
        return part

    def forget(self) -> None:
        """Free the whole parameters, once all are split."""
        self._split.clear()

    def enter(self, activation: Tensor) -> Tensor:
        """Return an activation for split layers; those that take the same one share its backward sum."""
        if not self.traced and (not activation.requires_grad or not torch.is_grad_enabled()):
            return activation
        known = self._given is not None and self._given() is activation
        if not known or version_of(activation) != self._version:
            self._given, self._version = weakref.ref(activation), version_of(activation)
            self._taken = (
                operators.enter(activation, self._number) if self.traced else _Enter.apply(activation, self)
            )
        return self._taken

    def begin(self, part: Tensor) -> Tensor:
        """Return the first split features of a region; what is drawn from here on is the rank's own."""
        if not self.traced:
            self.region.begin(part.device)
            return part
        # Where nothing is drawn, a graph needs no mark of it.
        marks = self.region.watches or self.region.draws
        return operators.begin(part, self._number) if marks else part

    def total(self, part: Tensor) -> Tensor:
        """Return the sum of all ranks' parts of an activation, with which a region ends."""
        self._leave()
        if self.traced:
            return operators.total(part, self._number)
        self.region.end()
        summed: Tensor = _Total.apply(part, self)
        return summed

    def joined(self, part: Tensor, length: int) -> Tensor:
        """Return all ranks' features [..., length], of which each has a part."""
        self._leave()
        if self.traced:
            return operators.joined(part, self._number, length)
        whole: Tensor = _Joined.apply(part, self, length)
        return whole

    def joined_parts(self, part: Tensor, length: int) -> Tensor:
        """Return what `joined` does, without a backward pass."""
        missing = -(-length // self.size) - part.shape[-1]
        # Collectives take tensors of one shape.
        parts = self.gather(nn.functional.pad(part, (0, missing)).contiguous())
        return torch.cat(parts, -1)[..., :length]

    def _leave(self) -> None:
        self._given, self._taken = None, torch.empty(0)

    def sum(self, tensor: Tensor) -> None:
        """Sum a contiguous tensor over the ranks, in place."""

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the ranks' tensors, of one shape, in order."""
        return [tensor] * self.size

    def sum_of_parts(self, parts: Tensor) -> Tensor:
        """Return the sum over the ranks of the part that is this rank's, of parts [ranks, ...] for all."""
        return parts[self.rank]

    def _as_part(self, part: Tensor, whole: Tensor, dim: int) -> Tensor:
        return part


class MeshTensorGroup(TensorGroup):
    """The ranks of a one-dimensional mesh, which may be a slice of one with more dimensions.

    Attributes:
        alone: whether nothing is exchanged, as while a rank runs layers that others don't.
    """

    def __init__(self, mesh: DeviceMesh, recorder: Recorder, *, traced: bool = False) -> None:
        super().__init__(mesh.size(), mesh.get_local_rank(), traced=traced)
        self.alone = False
        self._mesh, self._group, self._recorder = mesh, mesh.get_group(), recorder

    def sum(self, tensor: Tensor) -> None:
        """Sum a contiguous tensor over the ranks, in place."""
        if self.alone:
            return
        with self._counted("all_reduce", tensor):
            dist.all_reduce(tensor, group=self._group)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the ranks' tensors, of one shape, in order."""
        if self.alone:
            return [tensor] * self.size
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._counted("all_gather", tensor):
            dist.all_gather(gathered, tensor, group=self._group)
        return gathered

    def sum_of_parts(self, parts: Tensor) -> Tensor:
        """Return the sum over the ranks of the part that is this rank's, of parts [ranks, ...] for all."""
        own = torch.empty_like(parts[0])
        with self._counted("reduce_scatter", parts), uncounted():
            dist.reduce_scatter_tensor(own, parts.flatten(0, 1), group=self._group)
        return own

    def _counted(self, kind: str, given: Tensor) -> AbstractContextManager[None]:
        """Count the bytes that this rank hands over, and the block's time where the host spends it."""
        self._recorder.hand_over(kind, given.nbytes, AXIS)
        if given.device.type != "cpu":
            return contextlib.nullcontext()
        return self._recorder.exchanging(kind, group=AXIS, size=given.nbytes)

    def _as_part(self, part: Tensor, whole: Tensor, dim: int) -> Tensor:
        return DTensor.from_local(
            part, self._mesh, [Shard(dim)], run_check=False, shape=whole.shape, stride=whole.stride()
        )


class _Enter(Function):
    @staticmethod
    def forward(context: Any, activation: Tensor, group: TensorGroup) -> Tensor:
        context.group = group
        return activation.view_as(activation)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        summed = gradient.clone(memory_format=torch.contiguous_format)
        context.group.sum(summed)
        return summed, None


class _Total(Function):
    @staticmethod
    def forward(context: Any, part: Tensor, group: TensorGroup) -> Tensor:
        summed = part.contiguous()
        if summed is part:
            context.mark_dirty(part)
        group.sum(summed)
        return summed

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Joined(Function):
    @staticmethod
    def forward(context: Any, part: Tensor, group: TensorGroup, length: int) -> Tensor:
        context.span = group.span(length)
        return group.joined_parts(part, length)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[..., context.span].contiguous(), None, None

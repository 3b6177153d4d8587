"""Make a stage a module that receives and sends contiguous tensors, the only ones that backends send.

An activation in channels_last travels as [batch, height, width,
channels], which is the same memory under another name, and costs no copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, fx, nn

from src.partition.torch.graph import Graph, Value


class Stage(nn.Module):
    """A stage: a part of a graph, between tensors as they cross its boundaries.

    The last stage returns the model's own output. Parameters have the model's names under `part.`.

    Attributes:
        part: the module of the stage's operations.
        last: whether this is the last stage.
        received: the tensors that cross its first boundary; none for the first stage, which has the images.
        sent: the tensors that cross its last boundary.
    """

    def __init__(
        self,
        part: nn.Module,
        received: tuple[BoundaryTensor, ...],
        sent: tuple[BoundaryTensor, ...],
        *,
        last: bool,
    ) -> None:
        super().__init__()
        self.part = part
        self.last = last
        self.received = received
        self.sent = sent

    @classmethod
    def of(cls, graph: Graph, start: int, stop: int, values: Mapping[str, Value]) -> Self:
        """Make the stage of operations `start` to `stop` - 1, to be trained.

        `values` are the graph's tensors by name, for the stage's size of micro-batch.
        """
        received = boundary_tensors(graph.live[start], values) if start else ()
        sent = boundary_tensors(graph.live[stop], values)
        return cls(graph.stage(start, stop), received, sent, last=stop == len(graph.operations))

    def forward(self, *received: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run the stage on the tensors that cross its first boundary; return those that cross its last."""
        if self.received:
            pairs = zip(self.received, received, strict=True)
            received = tuple(crossing.unpack(tensor) for crossing, tensor in pairs)
        results = self.part(*received)
        if self.last:
            return results
        return tuple(crossing.pack(tensor) for crossing, tensor in zip(self.sent, results, strict=True))


class RankStages(nn.Module):
    """The stages of one rank, which a schedule runs one by one.

    Attributes:
        part: has the modules and tensors of all stages; parameters have the model's names under it.
        stages: the stages, in the order of the model; their tensors are those of `part`.
    """

    def __init__(self, part: nn.Module, stages: Sequence[Stage]) -> None:
        super().__init__()
        self.part = part
        # A tuple, whose modules aren't submodules: each tensor has one name.
        self.stages = tuple(stages)


class BoundaryTensor:
    """The form in which one live value crosses a boundary."""

    def __init__(self, value: Value) -> None:
        self.permuted = value.channels_last
        self.shape = tuple(value.shape[axis] for axis in (0, 2, 3, 1)) if self.permuted else value.shape
        self.dtype = value.dtype
        self.requires_grad = value.requires_grad

    def pack(self, tensor: Tensor) -> Tensor:
        """Return the tensor as it crosses the boundary: contiguous."""
        # `contiguous` copies only where the layout isn't the expected one.
        return (tensor.permute(0, 2, 3, 1) if self.permuted else tensor).contiguous()

    def unpack(self, tensor: Tensor) -> Tensor:
        """Return a tensor that has crossed the boundary in the shape that the model expects."""
        return tensor.permute(0, 3, 1, 2) if self.permuted else tensor

    def buffer(self, device: torch.device) -> Tensor:
        """Return an empty tensor on `device` to receive into."""
        return torch.empty(self.shape, dtype=self.dtype, device=device, requires_grad=self.requires_grad)


def as_received(tensor: Tensor) -> Tensor:
    """Return a packed tensor with the strides that its receiver's buffer has.

    They may differ in sizes of one, which `contiguous` leaves alone: cuDNN sets those otherwise than a CPU,
    and torch's stages compare them.
    """
    return tensor.view(-1).view(tensor.shape) if 1 in tensor.shape else tensor


def boundary_tensors(live: Sequence[fx.Node], values: Mapping[str, Value]) -> tuple[BoundaryTensor, ...]:
    """Return the tensors of live nodes as they cross a boundary, in the order that its stages have."""
    return tuple(BoundaryTensor(values[node.name]) for node in live)


def receive_buffers(crossing: Sequence[BoundaryTensor], device: torch.device) -> tuple[Tensor, ...]:
    """Return empty tensors on `device` to receive one micro-batch into."""
    return tuple(tensor.buffer(device) for tensor in crossing)

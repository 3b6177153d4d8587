"""One stage as a module between two wires: what it receives and sends are contiguous tensors.

Backends send contiguous memory alone. An activation in channels_last travels as [batch, height, width,
channels], which is the same memory under another name, and costs no copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from src.partition.graph import Graph, Value


class Stage(nn.Module):
    """Operations `start` to `stop` of a graph: wire tensors in, wire tensors out.

    The last stage gives the model's own output. Parameters have the model's names under `part.`.
    """

    def __init__(self, graph: Graph, start: int, stop: int, values: dict[str, Value]) -> None:
        super().__init__()
        self.part = graph.stage(start, stop)
        self.last = stop == len(graph.operations)
        self.received = wires(graph, start, values) if start else ()
        self.sent = wires(graph, stop, values)

    def forward(self, *received: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self.received:
            received = tuple(wire.unpack(t) for wire, t in zip(self.received, received, strict=True))
        given = self.part(*received)
        if self.last:
            return given
        return tuple(wire.pack(t) for wire, t in zip(self.sent, given, strict=True))


class Wire:
    """How one live value crosses a boundary."""

    def __init__(self, value: Value) -> None:
        self.permuted = value.channels_last
        self.shape = tuple(value.shape[axis] for axis in (0, 2, 3, 1)) if self.permuted else value.shape
        self.dtype = value.dtype
        self.requires_grad = value.requires_grad

    def pack(self, tensor: Tensor) -> Tensor:
        """As it travels; `contiguous` copies only where the layout isn't the expected one."""
        return (tensor.permute(0, 2, 3, 1) if self.permuted else tensor).contiguous()

    def unpack(self, tensor: Tensor) -> Tensor:
        """As the model knows it."""
        return tensor.permute(0, 3, 1, 2) if self.permuted else tensor

    def buffer(self, device: torch.device) -> Tensor:
        """An empty tensor to receive into."""
        return torch.empty(self.shape, dtype=self.dtype, device=device, requires_grad=self.requires_grad)


def wires(graph: Graph, boundary: int, values: dict[str, Value]) -> tuple[Wire, ...]:
    """The wires that cross a boundary, in the order in which both stages know them."""
    return tuple(Wire(values[node.name]) for node in graph.live[boundary])


def buffers(crossing: Sequence[Wire], device: torch.device) -> tuple[Tensor, ...]:
    """Empty tensors for one micro-batch."""
    return tuple(wire.buffer(device) for wire in crossing)

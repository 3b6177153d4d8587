"""Make a stage a module that receives and sends contiguous tensors, the only ones that backends send.

An activation in channels_last travels as [batch, height, width,
channels], which is the same memory under another name, and costs no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from src.partition.torch.graph import Graph, Value
from src.partition.torch.pass_buffers import PassBuffers


class Run(NamedTuple):
    """Operations of a stage that follow each other.

    Attributes:
        function: runs them by the tensors of a stage's `part`, which is its first argument.
        again: whether their forward pass is computed again for their backward pass.
    """

    function: Callable[..., Any]
    again: bool


class Stage(nn.Module):
    """A stage: a part of a graph, between tensors as they cross its boundaries.

    The last stage returns the model's own output. Parameters have the model's names under `part.`.

    Attributes:
        part: the module of the stage's operations.
        last: whether this is the last stage.
        received: the tensors that cross its first boundary; none for the first stage, which has the images.
        sent: the tensors that cross its last boundary.
        runs: the part's operations, where some of them are computed again; else empty.
    """

    def __init__(
        self,
        part: nn.Module,
        received: tuple[BoundaryTensor, ...],
        sent: tuple[BoundaryTensor, ...],
        *,
        last: bool,
        runs: tuple[Run, ...] = (),
    ) -> None:
        super().__init__()
        self.part = part
        self.runs = runs
        self.last = last
        self.received = received
        self.sent = sent
        # By what is run: the names of the buffers that it moves.
        self._moved: dict[Callable[..., Any] | None, Set[str] | None] = {}

    @classmethod
    def of(
        cls,
        graph: Graph,
        start: int,
        stop: int,
        values: Mapping[str, Value],
        again: Sequence[Sequence[int]] = (),
    ) -> Self:
        """Make the stage of operations `start` to `stop` - 1, to be trained.

        Args:
            graph: the whole model.
            start, stop: its first operation, and the first after it.
            values: the graph's tensors by name, for the stage's size of micro-batch.
            again: the runs of operations (start, stop) whose forward pass is computed again for their
                backward pass.
        """
        received = boundary_tensors(graph.live[start], values) if start else ()
        sent = boundary_tensors(graph.live[stop], values)
        runs: list[Run] = []
        end = start
        for first, after in [*again, (stop, stop)] if again else ():
            for span, computed_again in (((end, first), False), ((first, after), True)):
                if span[0] < span[1]:
                    # What fx has written reads the tensors of whatever it is given as `self`.
                    runs.append(Run(type(graph.stage(*span)).forward, computed_again))
            end = after
        last = stop == len(graph.operations)
        return cls(graph.stage(start, stop), received, sent, last=last, runs=tuple(runs))

    def forward(self, *received: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run the stage on the tensors that cross its first boundary; return those that cross its last."""
        if self.received:
            pairs = zip(self.received, received, strict=True)
            received = tuple(crossing.unpack(tensor) for crossing, tensor in pairs)
        results = self._run(received) if self.runs else self.part(*received)
        if self.last:
            return results
        return tuple(crossing.send(tensor) for crossing, tensor in zip(self.sent, results, strict=True))

    def _run(self, results: Any) -> Any:
        """Run the part's operations on what enters them, some of them so that they are computed again."""
        for function, again in self.runs:
            run = partial(function, self.part)
            results = self.computed_again(run, results, function) if again else run(*results)
        return results

    def computed_again(
        self, run: Callable[..., Any], entering: Sequence[Tensor], part: Callable[..., Any] | None = None
    ) -> Any:
        """Run a forward pass of the stage, or of a part of it, that is computed again for its backward pass.

        The second time it finds the buffers as the first time, and moves copies of them. Layers that are
        called as they are may write into what enters them, of which they then have copies; exported
        operations don't.

        Args:
            run: runs the pass.
            entering: what enters it.
            part: tells the parts of the stage apart; `None` for the whole stage.

        Raises:
            ConfigError: where buffers move in some passes and not in others.
        """

        def on_copies(*given: Tensor) -> Any:
            return run(*(each.clone() for each in given))

        calls = isinstance(self.part, fx.GraphModule) and self.part.graph.find_nodes(op="call_module")
        buffers = PassBuffers(self, self._moved.get(part))
        results = checkpoint(
            on_copies if calls else run,
            *entering,
            use_reentrant=False,
            context_fn=lambda: (buffers.kept(), buffers.as_before()),
        )
        self._moved[part] = buffers.moved
        return results


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

    def send(self, tensor: Tensor) -> Tensor:
        """Return the tensor as a stage sends it: of one whose gradient nobody wants none comes back."""
        return self.pack(tensor if self.requires_grad else tensor.detach())

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

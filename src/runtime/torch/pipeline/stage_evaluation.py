"""Score the test set by the stages of a cut model, each of which passes its results on to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from src.data import order
from src.partition.torch import transfer
from src.partition.torch.graph import Graph
from src.partition.torch.stage import BoundaryTensor, Stage, boundary_tensors, receive_buffers
from src.runtime.common.context import RankContext
from src.runtime.torch import scoring
from src.runtime.torch.tensors import Tensors, input_tensors
from src.tasks.torch.task import Task

# Evaluation batches by which a stage may be ahead of the next stage.
AHEAD = 2


class StageEvaluation:
    """One rank's part of scoring the test set: a stage receives, computes, and sends or scores."""

    def __init__(
        self, context: RankContext, task: Task, graph: Graph, start: int, device: torch.device
    ) -> None:
        """Find the form of what the stage receives.

        Args:
            context: the rank's context.
            task: the configured task.
            graph: the whole model.
            start: the stage's first operation.
            device: where the stage runs.
        """
        self._context = context
        self._task = task
        # The boundary tensors that the stage receives, by size of an evaluation batch.
        self._received: dict[int, tuple[BoundaryTensor, ...]] = {}
        for part in self._pieces() if context.rank else ():
            size = part.stop - part.start
            if size not in self._received:
                self._received[size] = boundary_tensors(
                    graph, start, graph.values(self._inputs(part, device))
                )

    def run(self, stage: Stage, device: torch.device) -> Tensor:
        """Pass the test set through `stage`; return the last stage's sums, float64, and zeros of others."""
        totals = scoring.empty(self._task, device)
        sends: list[list[Any]] = []
        for part in self._pieces():
            results = stage(*self._passed(part, device))
            if stage.last:
                samples = self._context.arrays.test.read(part)
                totals += scoring.score_returned(self._context, self._task, part, samples, results, device)
                continue
            sends.append([transfer.isend(tensor, self._context.rank + 1) for tensor in results])
            if len(sends) > AHEAD:
                _wait(sends.pop(0))
        for send in sends:
            _wait(send)
        return totals

    def _pieces(self) -> Iterator[slice]:
        whole = slice(0, self._context.arrays.test_samples)
        return order.pieces(whole, self._context.config.evaluation_batch)

    def _inputs(self, part: slice, device: torch.device) -> Tensors:
        return input_tensors(self._context, self._context.arrays.test.read(part).inputs, device)

    def _passed(self, part: slice, device: torch.device) -> Tensors:
        """Return what the stage is given of the test samples `part`: inputs, or what the last stage sends."""
        if not self._context.rank:
            return self._inputs(part, device)
        received = receive_buffers(self._received[part.stop - part.start], device)
        for tensor in received:
            transfer.recv(tensor.detach(), self._context.rank - 1)
        return tuple(tensor.detach() for tensor in received)


def _wait(send: list[Any]) -> None:
    """Wait until the pairs (work, tensor) of one evaluation batch have been sent."""
    for work, _ in send:
        work.wait()

"""Score the test set by the stages of a cut model, each of which passes its results on to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from src.data import order
from src.models.torch.unchanged import evaluating
from src.partition.torch import transfer
from src.partition.torch.evaluation import Evaluation, evaluation
from src.partition.torch.graph import Graph
from src.partition.torch.stage import Stage, receive_buffers
from src.partition.torch.trace import traced
from src.runtime.common.batch_split import BatchSplit
from src.runtime.common.context import RankContext
from src.runtime.torch import scoring
from src.runtime.torch.mesh import Axis
from src.runtime.torch.tensors import Tensors, input_tensors
from src.tasks.torch.outputs import model_outputs
from src.tasks.torch.task import Task

# Evaluation batches by which a stage may be ahead of the next stage.
AHEAD = 2


class StageEvaluation:
    """One rank's part of scoring the test set: a stage receives, computes, and sends or scores."""

    def __init__(
        self,
        context: RankContext,
        task: Task,
        model: nn.Module,
        graph: Graph,
        boundaries: Sequence[int],
        stages: Axis,
        device: torch.device,
    ) -> None:
        """Make the rank's stage for each size of an evaluation batch.

        Args:
            context: the rank's context.
            task: the configured task.
            model: the whole model.
            graph: its operations in training.
            boundaries: the inner ones of the cut.
            stages: the ranks that hold the stages, and score a part of the test set together.
            device: where the stage runs.

        Raises:
            ConfigError: when the model's evaluation can't be divided among the stages.
        """
        self._context = context
        self._task = task
        self._axis = stages
        self._part = BatchSplit(context.config).part(
            context.config.degrees.batch_part(context.rank), context.arrays.test_samples
        )
        self._stages: dict[int, Stage] = {}
        found: Evaluation | None = None
        for part in self._pieces():
            size = part.stop - part.start
            if size in self._stages:
                continue
            inputs = self._inputs(part, device)
            if found is None or not found.traced.allows(inputs):
                with evaluating(model):
                    found = evaluation(graph, boundaries, traced(model, inputs, task.outputs))
            self._stages[size] = found.stage(stages.index, found.values(inputs))

    def run(self, device: torch.device) -> Tensor:
        """Pass this copy's part of the test set through the stage; return the last stage's sums, float64.

        Those of other stages are zeros.
        """
        totals = scoring.empty(self._task, device)
        stages = self._axis
        following = stages.ranks[(stages.index + 1) % stages.size]
        sends: list[list[Any]] = []
        for part in self._pieces():
            stage = self._stages[part.stop - part.start]
            results = stage(*self._passed(stage, part, device))
            if stage.last:
                samples = self._context.arrays.test.read(part)
                outputs = model_outputs(results)
                totals += scoring.score_outputs(self._context, self._task, part, samples, outputs, device)
                continue
            sends.append([transfer.isend(tensor, following) for tensor in results])
            if len(sends) > AHEAD:
                _wait(sends.pop(0))
        for send in sends:
            _wait(send)
        return totals

    def _pieces(self) -> Iterator[slice]:
        return order.pieces(self._part, self._context.config.evaluation_batch)

    def _inputs(self, part: slice, device: torch.device) -> Tensors:
        return input_tensors(self._context, self._context.arrays.test.read(part).inputs, device)

    def _passed(self, stage: Stage, part: slice, device: torch.device) -> Tensors:
        """Return what the stage is given of the test samples `part`: inputs, or what the last stage sends."""
        stages = self._axis
        if not stages.index:
            return self._inputs(part, device)
        received = receive_buffers(stage.received, device)
        for tensor in received:
            transfer.recv(tensor.detach(), stages.ranks[stages.index - 1])
        return tuple(tensor.detach() for tensor in received)


def _wait(send: list[Any]) -> None:
    """Wait until the pairs (work, tensor) of one evaluation batch have been sent."""
    for work, _ in send:
        work.wait()

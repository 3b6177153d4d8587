"""Score the test set by the stages of a cut model, each of which passes its results on to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
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
    """One rank's part of scoring the test set: each of its stages receives, computes, and sends or scores."""

    def __init__(
        self,
        context: RankContext,
        task: Task,
        model: nn.Module,
        graph: Graph,
        boundaries: Sequence[int],
        placed: Sequence[int],
        stages: Axis,
        device: torch.device,
    ) -> None:
        """Make the rank's stages for each size of an evaluation batch.

        Args:
            context: the rank's context.
            task: the configured task.
            model: the whole model.
            graph: its operations in training.
            boundaries: the inner ones of the cut.
            placed: the place among `stages` of the rank that holds each stage.
            stages: the ranks that hold the stages, and score a part of the test set together.
            device: where the stages run.

        Raises:
            ConfigError: when the model's evaluation can't be divided among the stages.
        """
        self._context = context
        self._task = task
        self._axis = stages
        self._ranks = [stages.ranks[place] for place in placed]
        self._own = [stage for stage, place in enumerate(placed) if place == stages.index]
        self._part = BatchSplit(context.config).part(
            context.config.degrees.batch_part(context.rank), context.arrays.test_samples
        )
        # By the number of a stage and of samples.
        self._stages: dict[tuple[int, int], Stage] = {}
        found: Evaluation | None = None
        for part in self._pieces():
            size = part.stop - part.start
            if (self._own[0], size) in self._stages:
                continue
            inputs = self._inputs(part, device)
            if found is None or not found.traced.allows(inputs):
                with evaluating(model):
                    found = evaluation(graph, boundaries, traced(model, inputs, task.outputs))
            values = found.values(inputs)
            self._stages |= {(number, size): found.stage(number, values) for number in self._own}

    def run(self, device: torch.device) -> Tensor:
        """Pass this copy's part of the test set through the stages; return the last stage's sums, float64.

        Those of other stages are zeros. A rank with several stages passes as many evaluation batches through
        one as there are ranks, and then through the next one, so that all of them work.
        """
        totals = scoring.empty(self._task, device)
        sends: list[list[Any]] = []
        # By stage and first sample: what this rank's next stage is given.
        passed: dict[tuple[int, int], Tensors] = {}
        pieces, size = list(self._pieces()), self._axis.size if len(self._own) > 1 else 1
        for start in range(0, len(pieces), size):
            for number, part in product(self._own, pieces[start : start + size]):
                stage = self._stages[number, part.stop - part.start]
                given = passed.pop((number, part.start), None)
                results = stage(*(self._passed(number, stage, part, device) if given is None else given))
                if stage.last:
                    samples = self._context.arrays.test.read(part)
                    outputs = model_outputs(results)
                    totals += scoring.score_outputs(self._context, self._task, part, samples, outputs, device)
                    continue
                if number + 1 in self._own:
                    passed[number + 1, part.start] = results
                    continue
                following = self._ranks[number + 1]
                sends.append([transfer.isend(tensor, following) for tensor in results])
                if len(sends) > AHEAD * size:
                    _wait(sends.pop(0))
        for send in sends:
            _wait(send)
        return totals

    def _pieces(self) -> Iterator[slice]:
        return order.pieces(self._part, self._context.config.evaluation_batch)

    def _inputs(self, part: slice, device: torch.device) -> Tensors:
        return input_tensors(self._context, self._context.arrays.test.read(part).inputs, device)

    def _passed(self, number: int, stage: Stage, part: slice, device: torch.device) -> Tensors:
        """Return what a stage is given of the test samples `part`: inputs, or what the stage before sends."""
        if number == 0:
            return self._inputs(part, device)
        received = receive_buffers(stage.received, device)
        for tensor in received:
            transfer.recv(tensor.detach(), self._ranks[number - 1])
        return tuple(tensor.detach() for tensor in received)


def _wait(send: list[Any]) -> None:
    """Wait until the pairs (work, tensor) of one evaluation batch have been sent."""
    for work, _ in send:
        work.wait()

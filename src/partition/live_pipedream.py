"""Predict the bytes of live tensors over a step of a stage that trains by PipeDream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from src.measure.live_bytes import PARTS
from src.measure.live_step import LiveBytes
from src.partition.live_memory import GRADIENTS, StageBytes, Step, parts
from src.partition.schedules.actions import Kind
from src.partition.schedules.pipedream import WeightRule

OPTIMIZER = PARTS.index("optimizer")


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """Holdings of a stage that doesn't wait for the others, besides what its passes make.

    Attributes:
        rule: which weights its micro-batches see.
        weights: bytes of one version of what is trained.
        batch: bytes of what it is fed for a step.
        ahead, back: how many tensors it sends on, and how many gradients it sends back, of a micro-batch.
        most_sent: how many tensors are kept after they were sent, the last ones.
        again: whether forward passes are computed again.
        update: bytes that the optimizer's update makes for a moment.
    """

    rule: WeightRule
    weights: float
    batch: float
    ahead: int
    back: int
    most_sent: int
    again: bool
    update: float


def live_bytes(stage: StageBytes, options: Asynchronous, held: np.ndarray, steps: int) -> LiveBytes:
    """Predict the last of so many steps, which begin with no micro-batch under way.

    Args:
        stage: its passes.
        options: what it holds further.
        held: what it holds with nothing under way: one version of the weights, no gradients, and no batch
            [parts].
        steps: how many; one at least.
    """
    running = _Running(stage, options, held)
    for _ in range(steps):
        running.step = Step(running.step.level)
        running.run_step()
    return running.step.live()


class _Running:
    """A stage that trains step by step, as `PipeDreamModule` does."""

    def __init__(self, stage: StageBytes, options: Asynchronous, held: np.ndarray) -> None:
        self._stage, self._options, self._held = stage, options, held
        # The optimizer's state is made by the first update.
        self.step = Step(held - parts(optimizer=held[OPTIMIZER]))
        self._begun = self._done = 0
        # Tensors that are kept after they were sent, with their bytes by part.
        self._sent = deque[np.ndarray]()
        self._versions, self._newest = 1, 0

    def run_step(self) -> None:
        """Begin one batch's micro-batches, and do the backward passes and the update that are due by then."""
        stage, rule = self._stage, self._options.rule
        self.step.change(parts(other=self._options.batch))
        for _ in range(rule.microbatches):
            self.step.change(parts(exchange=stage.received - stage.received_back))
            if self._begun - self._done == rule.depth:
                self._backward()
            self.step.add(stage.passes[Kind.FORWARD, self._options.again, self._begun < rule.microbatches])
            self._send(self._options.ahead, self._output)
            self.step.change(parts(exchange=stage.received_back))
            self._begun += 1

    @property
    def _output(self) -> np.ndarray:
        return parts(activations=self._stage.kept, exchange=self._stage.output - self._stage.kept)

    def _backward(self) -> None:
        stage, count = self._stage, self._options.rule.microbatches
        first = self._done % count == 0
        if first:
            self.step.change(parts(gradients=self._held[GRADIENTS] - self.step.level[GRADIENTS]))
        self.step.add(stage.passes[Kind.BACKWARD, self._options.again, first])
        gradients = parts(exchange=stage.sent_back)
        kept = [self._output] * (self._options.ahead > 0) + [gradients] * (self._options.back > 0)
        self.step.change(parts(exchange=-stage.received), *kept)
        self._send(self._options.back, gradients)
        self._done += 1
        if self._done % count == 0:
            self.step.change(parts(other=-self._options.batch))
            self._update()

    def _send(self, tensors: int, kept: np.ndarray) -> None:
        """Keep so many tensors that are sent, which have together the bytes `kept`, and free older ones.

        These have no other use any more: a micro-batch's backward pass is done before.
        """
        self._sent.extend([kept / max(1, tensors)] * tensors)
        while len(self._sent) > self._options.most_sent:
            self.step.change(-self._sent.popleft())

    def _update(self) -> None:
        """Make the next version of the weights, and free those that no micro-batch needs any more."""
        oldest = self._options.rule.version(self._done)
        copied = oldest <= self._newest
        if copied:
            self.step.change(parts(weights=self._options.weights))
        state = 0.0 if self._newest else self._held[OPTIMIZER]
        self.step.change(parts(other=self._options.update, optimizer=state))
        self._newest += 1
        held = self._newest - oldest + 1
        freed = self._versions + copied - held
        self.step.change(parts(other=-self._options.update, weights=-freed * self._options.weights))
        self._versions = held

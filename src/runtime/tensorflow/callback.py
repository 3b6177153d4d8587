"""Follow a TensorFlow training's steps: record, evaluate, save checkpoints, and end the training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from src.measure.recorder import Recorder
from src.run.status import Status
from src.runtime.common.context import RankContext
from src.runtime.common.step_policy import StepPolicy
from src.runtime.tensorflow import feed
from src.runtime.tensorflow.checkpoint import Checkpoints, Sums


class StepFollower(Protocol):
    """A handler of completed steps that says when a training ends.

    Attributes:
        status: how the training has ended, and `None` while it goes on.
        late: whether the time limit has passed by this process's clock.
    """

    @property
    def status(self) -> Status | None: ...
    @property
    def late(self) -> bool: ...

    def on_train_start(self) -> None:
        """Handle the beginning of the first step."""

    def on_steps_end(self, losses: Sequence[float], correct: float, *, late: bool) -> None:
        """Handle steps of one epoch that were completed together.

        Args:
            losses: mean loss over the global batch, of each step.
            correct: correct answers in all of these steps.
            late: whether the time limit ends the training here.
        """


class TrainingCallback:
    """A `StepFollower` that records a training, for a custom loop and for Keras's `fit` alike.

    Attributes:
        status: how the training has ended (`OK`, `TIME_LIMIT` or `DIVERGED`), and `None` while it goes on.
    """

    def __init__(
        self,
        context: RankContext,
        recorder: Recorder,
        evaluate: Callable[[], tuple[float, float, float]],
        checkpoints: Checkpoints,
    ) -> None:
        """Follow the training of one rank.

        Args:
            context: the rank's context.
            recorder: the rank's recorder.
            evaluate: scores the test set, and returns (mean loss, accuracy, seconds).
            checkpoints: the rank's checkpoints.
        """
        self.status: Status | None = None
        self._context = context
        self._recorder = recorder
        self._evaluate_model = evaluate
        self._checkpoints = checkpoints
        self._policy = StepPolicy(context.config, feed.steps_per_epoch(context))
        self._loss, self._correct, self._trained = checkpoints.sums
        recorder.facts["steps_per_epoch"] = self._policy.steps_per_epoch

    def on_train_start(self) -> None:
        """Start the clock, and set `status` if all steps are done already."""
        self._recorder.start()
        # A job that is started again after a failure may have had all its epochs done.
        self.status = self._evaluated_status()

    @property
    def late(self) -> bool:
        """Return whether the time limit has passed by this process's clock."""
        return self._policy.is_late(self._recorder.train_seconds)

    def on_steps_end(self, losses: Sequence[float], correct: float, *, late: bool) -> None:
        """Record steps of one epoch that were completed together; evaluate, save or end where that is due.

        Args:
            losses: mean loss over the global batch, of each step.
            correct: correct answers in all of these steps.
            late: whether the time limit ends the training here.
        """
        config, recorder, policy = self._context.config, self._recorder, self._policy
        before = recorder.steps
        epoch = before // policy.steps_per_epoch + 1
        recorder.completed(losses, config.global_batch // self._context.world_size, epoch=epoch)
        self._loss += float(np.sum(losses))
        self._correct += correct
        self._trained += len(losses)
        self._checkpoints.check()
        diverged = not np.isfinite(losses).all()
        self.status = policy.status(recorder.steps, diverged=diverged, late=late)
        scored = self._evaluate() if policy.evaluates(before, recorder.steps, self.status) else 0.0
        if self.status in (None, Status.TIME_LIMIT):
            self.status = self._evaluated_status() or self.status
        if policy.saves(before, recorder.steps, self.status) and np.isfinite(scored):
            self._checkpoints.write(recorder.steps, Sums(self._loss, self._correct, self._trained))
        if self.status is not None:
            bad = np.flatnonzero(~np.isfinite(losses))
            self._checkpoints.settle(before + 1 + int(bad[0]) if len(bad) else None)

    def _evaluated_status(self) -> Status | None:
        """Return `ok` if the training ends by its steps or its last evaluation, which all ranks share."""
        recorder = self._recorder
        reached = recorder.target_reached
        return self._policy.status(recorder.steps, diverged=False, late=False, reached=reached)

    def _evaluate(self) -> float:
        """Score the test set, record that, and return the loss."""
        recorder, trained = self._recorder, self._trained
        with recorder.off_clock():
            loss, accuracy, seconds = self._evaluate_model()
            recorder.facts["validation_samples_per_second"] = self._context.arrays.test_samples / seconds
            recorder.evaluated(
                epoch=recorder.steps / self._policy.steps_per_epoch,
                train_loss=self._loss / trained,
                train_accuracy=self._correct / (trained * self._context.config.global_batch),
                loss=loss,
                accuracy=accuracy,
                seconds=seconds,
            )
        self._loss = self._correct = 0.0
        self._trained = 0
        return loss

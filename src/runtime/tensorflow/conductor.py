"""What happens after each step, whoever loops: recording, evaluating, and the end of a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from src.measure.recorder import Recorder
from src.runtime.tensorflow import feed
from src.runtime.tensorflow.checkpoint import Checkpoints
from src.worker import Run


class Conductor:
    """Takes completed steps; `status` is set once training is over."""

    def __init__(
        self,
        run: Run,
        recorder: Recorder,
        evaluation: Callable[[], tuple[float, float, float]],
        checkpoints: Checkpoints,
    ) -> None:
        self.status: str | None = None
        self._run = run
        self._recorder = recorder
        self._evaluation = evaluation
        self._checkpoints = checkpoints
        self._per_epoch = feed.steps_per_epoch(run)
        self._last = self._per_epoch * run.config.epochs
        self._loss = self._correct = 0.0
        self._trained = 0
        recorder.facts["steps_per_epoch"] = self._per_epoch

    def begin(self) -> None:
        """Starts the clock; a job that is started again may have been done."""
        self._recorder.begin()
        if self._recorder.steps >= self._last:
            self.status = "ok"

    @property
    def late(self) -> bool:
        """Whether the time limit has passed."""
        return self._recorder.train_seconds > self._run.config.max_minutes * 60

    def completed(self, losses: Sequence[float], correct: float, *, late: bool) -> None:
        """Steps of one epoch that were completed together: the global batch's mean loss of each, all their
        correct answers, and whether the time limit ends the training here."""
        config, recorder = self._run.config, self._recorder
        before = recorder.steps
        recorder.completed(
            losses, config.global_batch // self._run.world_size, epoch=before // self._per_epoch + 1
        )
        self._loss += float(np.sum(losses))
        self._correct += correct
        self._trained += len(losses)
        every = config.evaluate_every
        if not np.isfinite(losses).all():
            self.status = "diverged"
        elif recorder.steps == self._last:
            self.status = "ok"
        elif late:
            self.status = "time_limit"
        passed = every is not None and recorder.steps // every > before // every
        if self.status is not None or passed or recorder.steps % self._per_epoch == 0:
            self._evaluate()
        self._checkpoints.completed(before, recorder.steps, self.status)

    def _evaluate(self) -> None:
        recorder, trained = self._recorder, self._trained
        with recorder.off_clock():
            loss, accuracy, seconds = self._evaluation()
            recorder.facts["validation_samples_per_second"] = self._run.arrays.test_samples / seconds
            recorder.evaluated(
                epoch=recorder.steps / self._per_epoch,
                train_loss=self._loss / trained,
                train_accuracy=self._correct / (trained * self._run.config.global_batch),
                loss=loss,
                accuracy=accuracy,
                seconds=seconds,
            )
        self._loss = self._correct = 0.0
        self._trained = 0

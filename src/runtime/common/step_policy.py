"""Decide when a training evaluates, saves a checkpoint and ends, in the same way for every framework."""

from __future__ import annotations

from src.config import Config
from src.run.status import Status


class StepPolicy:
    """Decides what follows a completed optimizer step.

    Steps are counted over all epochs, from 1. A backend may complete several steps at once: then `before` is
    the last step that the policy was asked about, and `step` the latest one. An evaluation or a checkpoint
    that fell due between the two is due now.

    Attributes:
        steps_per_epoch: steps in an epoch.
        last_step: number of the training's last step, unless the training ends earlier.
    """

    def __init__(self, config: Config, steps_per_epoch: int) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.last_step = steps_per_epoch * config.epochs
        if config.audit is not None:
            self.last_step = min(self.last_step, config.audit["steps"])
        self._evaluate_every = config.evaluate_every
        self._checkpoint_every = config.checkpoint_every
        self._max_seconds = config.max_minutes * 60
        self._stops_at_target = config.stop_at_target

    def is_late(self, train_seconds: float) -> bool:
        """Return whether `train_seconds` of training exceed the time limit, `max_minutes`."""
        return train_seconds > self._max_seconds

    def status(self, step: int, *, diverged: bool, late: bool, reached: bool = False) -> Status | None:
        """Return `diverged`, `ok` or `time_limit` if the training ends with this step, and else `None`.

        Args:
            step: the step that has just been completed.
            diverged: whether a loss was infinite or NaN.
            late: whether the time limit has passed, which all ranks must agree on.
            reached: whether an evaluation has reached `target_accuracy`, which ends the training where
                `stop_at_target` says so.
        """
        if diverged:
            return Status.DIVERGED
        if step >= self.last_step or (reached and self._stops_at_target):
            return Status.OK
        return Status.TIME_LIMIT if late else None

    def evaluates(self, before: int, step: int, status: Status | None = None) -> bool:
        """Return whether to evaluate after `step`: every `evaluate_every` steps, and at the end of an epoch.

        With a `status`, with which the training ends, the answer is always yes.
        """
        due = _passed(self._evaluate_every, before, step) or _passed(self.steps_per_epoch, before, step)
        return status is not None or due

    def saves(self, before: int, step: int, status: Status | None = None) -> bool:
        """Return whether to write a checkpoint after `step`: every `checkpoint_every` steps.

        With a `status`, with which the training ends, the answer is yes too, unless the training has
        diverged: the last checkpoint may still be good. Without `checkpoint_every` the answer is always no.
        """
        if self._checkpoint_every is None or status == Status.DIVERGED:
            return False
        return status is not None or _passed(self._checkpoint_every, before, step)


def _passed(every: int | None, before: int, step: int) -> bool:
    """Return whether a multiple of `every` lies in (before, step]."""
    return every is not None and step // every > before // every

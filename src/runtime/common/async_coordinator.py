"""Coordinate asynchronous workers: a worker that is free takes the next part of a batch.

One process, the coordinator, schedules the steps and keeps the records of all workers. It schedules no steps
during evaluations and checkpoints, which are off the clock. A subclass says how steps reach the workers.
"""

from __future__ import annotations

import contextlib
import json
import queue
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from src.data import order
from src.data.batches import training_batches
from src.measure import timeline
from src.measure.recorder import Recorder
from src.run import files
from src.run.status import Status
from src.run.tables import write_text
from src.runtime.common.checkpoint_writer import CheckpointWriter
from src.runtime.common.context import RankContext
from src.runtime.common.step_policy import StepPolicy
from src.tasks.make import make

# A step that was lost with its worker is repeated by another worker, and its report may come late. So a step
# is recorded only after this time, when no step that ended before it can still be reported.
SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class CompletedStep:
    """One completed step of one worker.

    Attributes:
        rank: the worker's rank.
        loss: mean loss over the step's samples.
        sums: the task's sums over them.
        staleness: updates between the step's fetch and its push; `None` where that isn't known.
        began: when the fetch began, as all times by the host's wall clock, in seconds since 1970.
        fetched: when the fetch ended and computing began.
        computed: when the gradient was computed.
        pushed: when the push ended.
        samples: how many samples the step trained on.
    """

    rank: int
    loss: float
    sums: Sequence[float]
    staleness: int | None
    began: float
    fetched: float
    computed: float
    pushed: float
    samples: int


class AsyncCoordinator(ABC):
    """Schedules steps and records them. One thread calls the methods; any thread may call `report`.

    Attributes:
        scheduled: how many global batches have been scheduled, those of a resumed checkpoint included.
    """

    # Number of global batches whose steps are scheduled by one call of `schedule`.
    batches_at_once = 1

    def __init__(self, context: RankContext, recorders: list[Recorder]) -> None:
        """Take the coordinator's context, and the recorders of all workers in the order of their ranks."""
        self._context = context
        self._recorders = recorders
        self._reported: queue.SimpleQueue[tuple[CompletedStep, int]] = queue.SimpleQueue()
        self._unsettled: list[tuple[CompletedStep, int]] = []
        self._losses: list[float] = []
        self._diverged = False
        self._writer = CheckpointWriter(context)
        # Whether a saved state has a finite loss, as far as is known, by its number of steps. Of the last one
        # those workers try it whose first step on it hasn't ended: it may be finite on one's samples and not
        # on another's.
        self._good, self._trying = dict[int, bool](), set[int]()
        # Seconds of fetches and pushes by worker, warm-up left out.
        self._exchange: dict[int, float] = defaultdict(float)
        self._task = make(context.config, classes=context.arrays.classes, shape=context.arrays.shape)
        self._sums = np.zeros(len(self._task.sums))
        self._seen = 0
        self._offset = time.perf_counter() - time.time()
        self._intervals: list[list[tuple[int, str, int, float, float]]] = [[] for _ in recorders]
        per_epoch = order.steps_per_epoch(context.arrays.train_samples, context.config.global_batch)
        self._policy = StepPolicy(context.config, per_epoch)
        self.scheduled = 0

    @abstractmethod
    def schedule(self, batches: np.ndarray, epoch: int) -> None:
        """Schedule a step on each worker's part of each global batch.

        This method waits while the workers have enough to do.

        Args:
            batches: indices of training samples [steps, batch], one row for each global batch.
            epoch: the epoch of these batches, from 1.
        """

    @abstractmethod
    def step_bytes(self, rank: int) -> tuple[float, float]:
        """Return the mean bytes that a step of worker `rank` fetches, and those that it pushes."""

    @abstractmethod
    def join(self) -> None:
        """Wait until every scheduled step is done and has been reported."""

    @abstractmethod
    def score(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss over the whole test set, and the task's metrics."""

    @abstractmethod
    def save(self, writer: CheckpointWriter, *, epoch: int, step: int, worker_steps: list[int]) -> None:
        """Copy the state into memory, and have it written as a checkpoint, unless it isn't finite.

        Args:
            writer: writes the checkpoint; another one may be in progress.
            epoch: how many whole epochs are done.
            step: how many steps of the next epoch are done.
            worker_steps: how many steps each worker has done, by rank.
        """

    def report(self, completed: CompletedStep, epoch: int) -> None:
        """Queue a completed step of epoch `epoch` to be recorded; any thread may call this method."""
        self._reported.put((completed, epoch))

    def train(self, first: int) -> str:
        """Train until the step policy ends the training; return its status.

        Args:
            first: how many global batches are done already; a resumed training goes on after them.

        Returns:
            `ok`, `time_limit` or `diverged`.
        """
        config, policy = self._context.config, self._policy
        self._start()
        self.scheduled = first
        if first:
            self._writer.resume_at(first)
            self._await_first_steps(first)
        # A job that is started again may have had all its steps, or its target, before.
        reached = self._recorders[0].target_reached
        status = policy.status(first, diverged=False, late=False, reached=reached) if first else None
        group: list[np.ndarray] = []
        samples = self._context.arrays.train_samples
        last = policy.last_step if status is None else first
        batches = training_batches(config, samples, first, last)
        for step, batch in enumerate(batches, first + 1):
            group.append(batch)
            due = policy.evaluates(step - 1, step) or policy.saves(step - 1, step)
            if len(group) < self.batches_at_once and not due:
                continue
            self.schedule(np.stack(group), (step - 1) // policy.steps_per_epoch + 1)
            self.scheduled = step
            group.clear()
            self._writer.check()
            self._settle(time.time() - SETTLE_SECONDS)
            status = self._status(step)
            if status is not None or due:
                self.join()
                self._settle(float("inf"))
                status = self._status(step)
                scored = self._evaluate(step) if policy.evaluates(step - 1, step, status) else 0.0
                # The target may have been reached now.
                status = self._status(step)
                if policy.saves(step - 1, step, status) and np.isfinite(scored):
                    self._save(step)
            if status is not None:
                break
        assert status is not None
        self._finish()
        return status

    def _start(self) -> None:
        self._recorders[0].facts["steps_per_epoch"] = self._policy.steps_per_epoch
        for recorder in self._recorders:
            # A worker's fetches and pushes overlap with computing: its waits for input and for other workers
            # can't be measured, only the time in which it computes.
            recorder.input_seconds = recorder.communication_seconds = None
            recorder.busy_seconds = 0.0
            recorder.start()

    def _status(self, step: int) -> Status | None:
        slowest = max(recorder.train_seconds for recorder in self._recorders)
        return self._policy.status(
            step,
            diverged=self._diverged,
            late=self._policy.is_late(slowest),
            reached=self._recorders[0].target_reached,
        )

    def _settle(self, before: float) -> None:
        """Record the reported steps that ended before the time `before`, in the order of their ends."""
        while not self._reported.empty():
            self._unsettled.append(self._reported.get())
        self._unsettled.sort(key=lambda reported: reported[0].pushed)
        while self._unsettled and self._unsettled[0][0].pushed < before:
            self._record(*self._unsettled.pop(0))

    def _record(self, completed: CompletedStep, epoch: int) -> None:
        recorder = self._recorders[completed.rank]
        assert recorder.busy_seconds is not None
        recorder.busy_seconds += completed.computed - completed.fetched
        recorder.step(
            completed.loss,
            completed.samples,
            epoch=epoch,
            staleness=completed.staleness,
            ended=completed.pushed + self._offset,
        )
        self._losses.append(completed.loss)
        self._diverged |= not np.isfinite(completed.loss)
        if completed.rank in self._trying:
            self._trying.remove(completed.rank)
            self._good[max(self._good)] &= bool(np.isfinite(completed.loss))
        self._sums += completed.sums
        self._seen += completed.samples
        timed = recorder.trained_steps - self._context.config.warmup_steps
        times = (completed.began, completed.fetched, completed.computed, completed.pushed)
        if timed > 0:
            self._exchange[completed.rank] += times[1] - times[0] + times[3] - times[2]
        if 0 < timed <= timeline.STEPS:
            parts = zip(("fetch", "compute", "push"), times, times[1:], strict=False)
            self._intervals[completed.rank] += [(recorder.steps, name, -1, a, b) for name, a, b in parts]

    def _save(self, step: int) -> None:
        epoch, within = divmod(step, self._policy.steps_per_epoch)
        with self._off_clock():
            for recorder in self._recorders:
                recorder.flush()
            worker_steps = [recorder.steps for recorder in self._recorders]
            self.save(self._writer, epoch=epoch, step=within, worker_steps=worker_steps)
        self._await_first_steps(step)

    def _await_first_steps(self, step: int) -> None:
        """Find out by each worker's next step whether the state after `step` global batches is good."""
        self._good[step], self._trying = True, {recorder.rank for recorder in self._recorders}

    def metrics(self, sums: np.ndarray, samples: int) -> dict[str, float]:
        """Return the metrics of so many samples by the task's sums over them [sums]."""
        metrics: dict[str, float] = self._task.metrics(
            dict(zip(self._task.sums, sums.tolist(), strict=True)), samples
        )
        return metrics

    @contextlib.contextmanager
    def _off_clock(self) -> Iterator[None]:
        with contextlib.ExitStack() as stopped:
            for recorder in self._recorders:
                stopped.enter_context(recorder.off_clock())
            yield

    def _evaluate(self, step: int) -> float:
        """Score the test set, record the evaluation after `step` global batches, and return the loss."""
        samples = self._context.arrays.test_samples
        start = time.perf_counter()
        with self._off_clock():
            loss, metrics = self.score()
            seconds = time.perf_counter() - start
            recorder = self._recorders[0]
            recorder.facts["validation_samples_per_second"] = samples / seconds
            # TensorFlow's tasks score all samples.
            scored = getattr(self._task, "scores_training", True)
            recorder.evaluated(
                epoch=step / self._policy.steps_per_epoch,
                step=step,
                # Worker 0, whose record this is, may have been lost.
                train_seconds=max(other.train_seconds for other in self._recorders),
                train_loss=float(np.mean(self._losses)) if self._losses else None,
                train_metrics=self.metrics(self._sums, self._seen) if self._seen and scored else None,
                loss=loss,
                metrics=metrics,
                seconds=seconds,
            )
        self._losses, self._seen = [], 0
        self._sums[:] = 0
        return loss

    def _finish(self) -> None:
        """Settle the checkpoint; write each worker's payload and exchange to its record, and its timeline."""
        # What is asked of the servers from here on is no step's.
        self._recorders[0].end_traffic()
        if self._context.config.checkpoint_every is not None:
            self._writer.finish(self._good.__getitem__)
        for recorder, intervals in zip(self._recorders, self._intervals, strict=True):
            fetched, pushed = self.step_bytes(recorder.rank)
            recorder.payload_bytes = round((fetched + pushed) * recorder.trained_steps)
            timed = max(0, recorder.trained_steps - self._context.config.warmup_steps)
            recorder.facts |= {
                "exchange_seconds": self._exchange[recorder.rank],
                "fetched_bytes": round(fetched * timed),
                "pushed_bytes": round(pushed * timed),
            }
            write_text(recorder.folder / files.TIMELINE, json.dumps(intervals))

"""Training by workers that take turns: whoever is free takes the next share of a batch.

One process hands the shares out and records for all workers; it stops handing out for evaluations and
checkpoints, which are off the clock. How steps reach the workers is a subclass's.
"""

from __future__ import annotations

import contextlib
import json
import queue
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from src.data import order
from src.measure import timeline
from src.measure.recorder import Recorder
from src.worker import Run

# A step that was lost with its worker is repeated by another one and may be told of late: steps are
# recorded in the order in which they ended once nothing earlier can follow.
SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class Done:
    """One completed step of one worker; times are the host's wall clock, in seconds."""

    rank: int
    loss: float
    correct: float
    # Updates between this step's fetch and its push; `None` where that was lost.
    staleness: int | None
    began: float
    fetched: float
    computed: float
    pushed: float
    samples: int


class Turns(ABC):
    """Hands out steps and records them; used by one thread, but for `arrive`."""

    # Steps on as many global batches are handed out at once.
    together = 1

    def __init__(self, run: Run, recorders: list[Recorder]) -> None:
        self._run = run
        self._recorders = recorders
        self._arrived: queue.SimpleQueue[tuple[Done, int]] = queue.SimpleQueue()
        self._unsettled: list[tuple[Done, int]] = []
        self._losses: list[float] = []
        self._diverged = False
        # By worker, warm-up left out.
        self._exchange: dict[int, float] = defaultdict(float)
        self._correct = 0.0
        self._seen = 0
        self._offset = time.perf_counter() - time.time()
        self._intervals: list[list[tuple[int, str, int, float, float]]] = [[] for _ in recorders]
        self._per_epoch = order.steps_per_epoch(run.arrays.train_samples, run.config.global_batch)

    @abstractmethod
    def hand_out(self, batches: np.ndarray, epoch: int) -> None:
        """Steps on the global batches of indices [steps, batch], each worker's share of them by itself;
        waits while enough are waiting already."""

    @abstractmethod
    def moved(self, rank: int) -> tuple[float, float]:
        """Bytes that a step of this worker fetches and pushes, on average."""

    @abstractmethod
    def join(self) -> None:
        """Returns once every step that was handed out is done and has arrived."""

    @abstractmethod
    def score(self) -> tuple[float, float]:
        """(summed loss, correct answers) over the whole test set."""

    @abstractmethod
    def save(self, *, epoch: int, step: int, worker_steps: list[int]) -> None:
        """Writes a checkpoint; `epoch` whole epochs and `step` steps of the next one are done."""

    def arrive(self, done: Done, epoch: int) -> None:
        """A step was completed; called by any thread."""
        self._arrived.put((done, epoch))

    def train(self, first: int) -> str:
        """Trains from step `first` (each the workers' shares of one global batch); how it ended."""
        config, per_epoch = self._run.config, self._per_epoch
        self._recorders[0].facts["steps_per_epoch"] = per_epoch
        last = per_epoch * config.epochs
        for recorder in self._recorders:
            # What isn't compute, of that no single wait can be told.
            recorder.input_seconds = recorder.communication_seconds = None
            recorder.busy_seconds = 0.0
            recorder.begin()
        status = "ok" if first == last else None
        group: list[np.ndarray] = []
        samples, size = self._run.arrays.train_samples, config.global_batch
        batches = order.batches(samples, size, config.seed, first, last)
        for step, batch in enumerate(batches, first + 1):
            evaluates = step % (config.evaluate_every or per_epoch) == 0 or step % per_epoch == 0
            saves = config.checkpoint_every is not None and step % config.checkpoint_every == 0
            group.append(batch)
            if not (len(group) == self.together or evaluates or saves):
                continue
            self.hand_out(np.stack(group), (step - 1) // per_epoch + 1)
            group.clear()
            self._settle(time.time() - SETTLE_SECONDS)
            status = self._status(step == last)
            if status is not None or evaluates or saves:
                self.join()
                self._settle(float("inf"))
                status = self._status(step == last)
                if status is not None or evaluates:
                    self._evaluate(step)
                ended = status is not None and config.checkpoint_every is not None
                if (saves or ended) and status != "diverged":
                    self._save(step)
            if status is not None:
                break
        assert status is not None
        for recorder, found in zip(self._recorders, self._intervals, strict=True):
            fetched, pushed = self.moved(recorder.rank)
            recorder.payload_bytes = round((fetched + pushed) * recorder.trained_steps)
            timed = max(0, recorder.trained_steps - config.warmup_steps)
            recorder.facts |= {
                "exchange_seconds": self._exchange[recorder.rank],
                "fetched_bytes": round(fetched * timed),
                "pushed_bytes": round(pushed * timed),
            }
            (recorder.folder / "timeline.json").write_text(json.dumps(found))
        return status

    def _status(self, last: bool) -> str | None:
        if self._diverged:
            return "diverged"
        if last:
            return "ok"
        late = max(recorder.train_seconds for recorder in self._recorders)
        return "time_limit" if late > self._run.config.max_minutes * 60 else None

    def _settle(self, before: float) -> None:
        """Records the steps that ended before `before`, in their order."""
        while not self._arrived.empty():
            self._unsettled.append(self._arrived.get())
        self._unsettled.sort(key=lambda found: found[0].pushed)
        while self._unsettled and self._unsettled[0][0].pushed < before:
            self._record(*self._unsettled.pop(0))

    def _record(self, done: Done, epoch: int) -> None:
        recorder = self._recorders[done.rank]
        assert recorder.busy_seconds is not None
        recorder.busy_seconds += done.computed - done.fetched
        recorder.step(
            done.loss,
            done.samples,
            epoch=epoch,
            staleness=done.staleness,
            ended=done.pushed + self._offset,
        )
        self._losses.append(done.loss)
        self._diverged |= not np.isfinite(done.loss)
        self._correct += done.correct
        self._seen += done.samples
        kept = recorder.trained_steps - self._run.config.warmup_steps
        if kept > 0:
            self._exchange[done.rank] += done.fetched - done.began + done.pushed - done.computed
        if 0 < kept <= timeline.STEPS:
            times = (done.began, done.fetched, done.computed, done.pushed)
            parts = zip(("fetch", "compute", "push"), times, times[1:], strict=False)
            self._intervals[done.rank] += [(recorder.steps, name, -1, a, b) for name, a, b in parts]

    def _save(self, step: int) -> None:
        epoch, within = divmod(step, self._per_epoch)
        with self._off_clock():
            for recorder in self._recorders:
                recorder.flush()
            done = [recorder.steps for recorder in self._recorders]
            self.save(epoch=epoch, step=within, worker_steps=done)

    @contextlib.contextmanager
    def _off_clock(self) -> Iterator[None]:
        with contextlib.ExitStack() as stopped:
            for recorder in self._recorders:
                stopped.enter_context(recorder.off_clock())
            yield

    def _evaluate(self, step: int) -> None:
        """Every test sample once, on whichever workers there are."""
        samples = self._run.arrays.test_samples
        start = time.perf_counter()
        with self._off_clock():
            loss, correct = self.score()
            seconds = time.perf_counter() - start
            recorder = self._recorders[0]
            recorder.facts["validation_samples_per_second"] = samples / seconds
            recorder.evaluated(
                epoch=step / self._per_epoch,
                step=step,
                # Whoever records may have been lost.
                train_seconds=max(each.train_seconds for each in self._recorders),
                train_loss=float(np.mean(self._losses)) if self._losses else None,
                train_accuracy=self._correct / self._seen if self._seen else None,
                loss=loss / samples,
                accuracy=correct / samples,
                seconds=seconds,
            )
        self._losses, self._correct, self._seen = [], 0.0, 0

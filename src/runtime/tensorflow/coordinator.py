"""The coordinator's side of asynchronous steps: keeps the workers supplied, and records for all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import tensorflow as tf

from src.data import order
from src.measure import timeline
from src.measure.recorder import Recorder
from src.runtime.tensorflow import checkpoint, feed
from src.runtime.tensorflow import training as runtime
from src.runtime.tensorflow.served import ENVIRONMENT, Done, Served
from src.worker import Run

# Steps a worker that are with it or wait for it: none should wait for the coordinator.
AHEAD = 2
# A step that was lost with its worker is repeated by another one and may be told of late: steps are
# recorded in the order in which they ended once nothing earlier can follow.
SETTLE_SECONDS = 1.0


RemoteValue = tf.distribute.coordinator.RemoteValue


class Coordinator:
    """Schedules steps and evaluations on the workers of a `ClusterCoordinator`; used by one thread.

    At most `ahead` steps are with the workers or wait for one.
    """

    def __init__(
        self,
        run: Run,
        recorders: list[Recorder],
        cluster: tf.distribute.experimental.coordinator.ClusterCoordinator,
        served: Served,
        *,
        ahead: int | None = None,
    ) -> None:
        self._run = run
        self._recorders = recorders
        self._cluster = cluster
        self._served = served
        most = AHEAD * run.config.workers if ahead is None else ahead
        self._free = threading.Semaphore(most)
        self._pool = ThreadPoolExecutor(most)
        self._environment = tf.constant(ENVIRONMENT)
        self._waiting: list[Future[None]] = []
        self._arrived: queue.SimpleQueue[tuple[Done, int]] = queue.SimpleQueue()
        self._repeated: queue.SimpleQueue[tuple[RemoteValue, int]] = queue.SimpleQueue()
        self._unsettled: list[tuple[Done, int]] = []
        self._losses: list[float] = []
        self._diverged = False
        self._correct = 0.0
        self._offset = time.perf_counter() - time.time()
        self._intervals: list[list[tuple[int, str, int, float, float]]] = [[] for _ in recorders]

    def train(self, first: int) -> str:
        """Trains from step `first` (each the workers' shares of one global batch); how it ended."""
        config = self._run.config
        # This process has all workers' shares to give.
        everyone = dataclasses.replace(self._run, rank=0, world_size=1)
        per_epoch = feed.steps_per_epoch(everyone)
        batches = iter(feed.shards(everyone, config.workers, 1, first=first))
        runtime.keep(batches)
        self._recorders[0].facts["steps_per_epoch"] = per_epoch
        last = per_epoch * config.epochs
        for recorder in self._recorders:
            # What isn't compute, of that no single wait can be told.
            recorder.input_seconds = recorder.communication_seconds = None
            recorder.busy_seconds = 0.0
            recorder.begin()
        status = "ok" if first == last else None
        for step in range(first + 1, last + 1):
            for _ in range(config.workers):
                self._schedule(batches, (step - 1) // per_epoch + 1)
            self._settle(time.time() - SETTLE_SECONDS)
            status = self._status(step == last)
            evaluates = step % (config.evaluate_every or per_epoch) == 0 or step % per_epoch == 0
            saves = config.checkpoint_every is not None and step % config.checkpoint_every == 0
            if status is not None or evaluates or saves:
                self._join()
                status = self._status(step == last)
                if status is not None or evaluates:
                    self._evaluate(step, per_epoch)
                ended = status is not None and config.checkpoint_every is not None
                if (saves or ended) and status != "diverged":
                    self._save(step, per_epoch)
            if status is not None:
                break
        assert status is not None
        for recorder, found in zip(self._recorders, self._intervals, strict=True):
            recorder.payload_bytes = self._served.step_bytes * recorder.trained_steps
            (recorder.folder / "timeline.json").write_text(json.dumps(found))
        return status

    def _status(self, last: bool) -> str | None:
        if self._diverged:
            return "diverged"
        if last:
            return "ok"
        late = max(recorder.train_seconds for recorder in self._recorders)
        return "time_limit" if late > self._run.config.max_minutes * 60 else None

    def _schedule(self, batches: Iterator[Any], epoch: int) -> None:
        self._free.acquire()
        images, labels = next(batches)
        remote = self._cluster.schedule(self._served.step, args=(images[0], labels[0], self._environment))

        def collect() -> None:
            try:
                self._arrived.put((_read(remote), epoch))
            except tf.errors.OpError:
                # The worker was lost with the result; another one repeats the step.
                self._repeated.put((remote, epoch))
            finally:
                self._free.release()

        self._waiting = [future for future in self._waiting if not future.done()]
        self._waiting.append(self._pool.submit(collect))

    def _join(self) -> None:
        """Until every scheduled step is done and recorded; a lost server raises `UnavailableError`."""
        self._cluster.join()
        wait(self._waiting)
        while not self._repeated.empty():
            remote, epoch = self._repeated.get()
            self._arrived.put((_read(remote), epoch))
        self._settle(float("inf"))

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
            self._run.config.worker_batch,
            epoch=epoch,
            staleness=done.staleness,
            ended=done.pushed + self._offset,
        )
        self._losses.append(done.loss)
        self._diverged |= not np.isfinite(done.loss)
        self._correct += done.correct
        kept = recorder.trained_steps - self._run.config.warmup_steps
        if 0 < kept <= timeline.STEPS:
            times = (done.began, done.fetched, done.computed, done.pushed)
            parts = zip(("fetch", "compute", "push"), times, times[1:], strict=False)
            self._intervals[done.rank] += [(recorder.steps, name, -1, a, b) for name, a, b in parts]

    def _save(self, step: int, per_epoch: int) -> None:
        epoch, within = divmod(step, per_epoch)
        done = [recorder.steps for recorder in self._recorders]
        path = self._run.folder / checkpoint.FILE
        with self._off_clock():
            for recorder in self._recorders:
                recorder.flush()
            checkpoint.write(path, self._served.parts, self._run, epoch=epoch, step=within, worker_steps=done)

    @contextlib.contextmanager
    def _off_clock(self) -> Iterator[None]:
        with contextlib.ExitStack() as stopped:
            for recorder in self._recorders:
                stopped.enter_context(recorder.off_clock())
            yield

    def _evaluate(self, step: int, per_epoch: int) -> None:
        """Every test sample once, on whichever workers there are."""
        arrays = self._run.arrays
        start = time.perf_counter()
        with self._off_clock():
            whole = slice(0, arrays.test_samples)
            remotes = [
                self._cluster.schedule(
                    self._served.score,
                    args=(tf.constant(arrays.test_images[part]), tf.constant(arrays.test_labels[part])),
                )
                for part in order.pieces(whole, self._run.config.evaluation_batch)
            ]
            self._cluster.join()
            loss, correct = np.sum([remote.fetch() for remote in remotes], axis=0, dtype=float)
            seconds = time.perf_counter() - start
            recorder = self._recorders[0]
            recorder.facts["validation_samples_per_second"] = arrays.test_samples / seconds
            seen = len(self._losses) * self._run.config.worker_batch
            recorder.evaluated(
                epoch=step / per_epoch,
                step=step,
                # Whoever records may have been lost.
                train_seconds=max(each.train_seconds for each in self._recorders),
                train_loss=float(np.mean(self._losses)) if seen else None,
                train_accuracy=self._correct / seen if seen else None,
                loss=float(loss) / arrays.test_samples,
                accuracy=float(correct) / arrays.test_samples,
                seconds=seconds,
            )
        self._losses, self._correct = [], 0.0


def _read(remote: RemoteValue) -> Done:
    rank, loss, correct, staleness, *times = remote.fetch().tolist()
    return Done(int(rank), loss, correct, int(staleness), *times)

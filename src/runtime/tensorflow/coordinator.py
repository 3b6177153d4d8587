"""The coordinator's side of asynchronous steps: keeps the workers supplied, and records for all of them."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import tensorflow as tf

from src.data import order
from src.measure import timeline
from src.measure.recorder import Recorder
from src.runtime.tensorflow import checkpoint, feed
from src.runtime.tensorflow.served import Done, Served
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
        per_epoch = feed.steps_per_epoch(self._run)
        self._recorders[0].facts["steps_per_epoch"] = per_epoch
        last = per_epoch * config.epochs
        for recorder in self._recorders:
            # What isn't compute, of that no single wait can be told.
            recorder.input_seconds = recorder.communication_seconds = None
            recorder.busy_seconds = 0.0
            recorder.begin()
        status = "ok" if first == last else None
        together = config.strategy["steps_per_execution"]
        group: list[np.ndarray] = []
        for step, batch in enumerate(feed.indices(self._run, first, last), first + 1):
            evaluates = step % (config.evaluate_every or per_epoch) == 0 or step % per_epoch == 0
            saves = config.checkpoint_every is not None and step % config.checkpoint_every == 0
            group.append(batch)
            if not (len(group) == together or evaluates or saves):
                continue
            self._schedule(np.stack(group), (step - 1) // per_epoch + 1)
            group.clear()
            self._settle(time.time() - SETTLE_SECONDS)
            status = self._status(step == last)
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

    def _schedule(self, batches: np.ndarray, epoch: int) -> None:
        """Steps on the global batches of indices [steps, batch], each worker's share of them by itself."""
        workers = self._run.config.workers
        shares = [order.shard(self._run.config.global_batch, rank, workers) for rank in range(workers)]
        # What is left of an epoch has fewer steps, and no function of its own.
        for part in [batches] if len(batches) in self._served.steps else batches[:, None]:
            for share in shares:
                self._hand_out(part[:, share], epoch)

    def _hand_out(self, indices: np.ndarray, epoch: int) -> None:
        """To whichever worker is free, once not too many are waiting already."""
        self._free.acquire()
        arrays = self._run.arrays
        given = tf.constant(arrays.train_images[indices]), tf.constant(arrays.train_labels[indices])
        remote = self._cluster.schedule(self._served.steps[len(indices)], args=given)

        def collect() -> None:
            try:
                self._arrive(remote, epoch)
            except tf.errors.OpError:
                # The worker was lost with the result; another one repeats the step.
                self._repeated.put((remote, epoch))
            finally:
                self._free.release()

        self._waiting = [future for future in self._waiting if not future.done()]
        self._waiting.append(self._pool.submit(collect))

    def _arrive(self, remote: RemoteValue, epoch: int) -> None:
        for rank, loss, correct, staleness, *times in remote.fetch().tolist():
            self._arrived.put((Done(int(rank), loss, correct, int(staleness), *times), epoch))

    def _join(self) -> None:
        """Until every scheduled step is done and recorded; a lost server raises `UnavailableError`."""
        self._cluster.join()
        wait(self._waiting)
        while not self._repeated.empty():
            remote, epoch = self._repeated.get()
            self._arrive(remote, epoch)
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

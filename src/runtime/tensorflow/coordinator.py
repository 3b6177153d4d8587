"""The coordinator's side of asynchronous steps under TensorFlow: keeps a cluster's workers supplied."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import tensorflow as tf

from src.data import order
from src.measure.recorder import Recorder
from src.runtime.tensorflow import checkpoint
from src.runtime.tensorflow.served import Served
from src.runtime.turns import Done, Turns
from src.worker import Run

# Steps a worker that are with it or wait for it: none should wait for the coordinator.
AHEAD = 2

RemoteValue = tf.distribute.coordinator.RemoteValue


class Coordinator(Turns):
    """Schedules steps and evaluations on the workers of a `ClusterCoordinator`.

    At most `ahead` calls are with the workers or wait for one.
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
        super().__init__(run, recorders)
        self._bytes = served.bytes
        self.together = run.config.strategy["steps_per_execution"]
        self._cluster = cluster
        self._served = served
        most = AHEAD * run.config.workers if ahead is None else ahead
        self._free = threading.Semaphore(most)
        self._pool = ThreadPoolExecutor(most)
        self._waiting: list[Future[None]] = []
        self._repeated: queue.SimpleQueue[tuple[RemoteValue, int]] = queue.SimpleQueue()

    def hand_out(self, batches: np.ndarray, epoch: int) -> None:
        workers = self._run.config.workers
        shares = [order.shard(self._run.config.global_batch, rank, workers) for rank in range(workers)]
        # What is left of an epoch has fewer steps, and no function of its own.
        for part in [batches] if len(batches) in self._served.steps else batches[:, None]:
            for share in shares:
                self._schedule(part[:, share], epoch)

    def moved(self, rank: int) -> tuple[float, float]:
        return self._bytes, self._bytes

    def _schedule(self, indices: np.ndarray, epoch: int) -> None:
        """To whichever worker is free, once not too many are waiting already."""
        self._free.acquire()
        arrays = self._run.arrays
        given = tf.constant(arrays.train_images[indices]), tf.constant(arrays.train_labels[indices])
        remote = self._cluster.schedule(self._served.steps[len(indices)], args=given)

        def collect() -> None:
            try:
                self._collect(remote, epoch)
            except tf.errors.OpError:
                # The worker was lost with the result; another one repeats the step.
                self._repeated.put((remote, epoch))
            finally:
                self._free.release()

        self._waiting = [future for future in self._waiting if not future.done()]
        self._waiting.append(self._pool.submit(collect))

    def _collect(self, remote: RemoteValue, epoch: int) -> None:
        for rank, loss, correct, staleness, *times in remote.fetch().tolist():
            samples = self._run.config.worker_batch
            self.arrive(Done(int(rank), loss, correct, int(staleness), *times, samples), epoch)

    def join(self) -> None:
        """A lost server raises `UnavailableError`."""
        self._cluster.join()
        wait(self._waiting)
        while not self._repeated.empty():
            self._collect(*self._repeated.get())

    def score(self) -> tuple[float, float]:
        """On whichever workers there are."""
        arrays = self._run.arrays
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
        return float(loss), float(correct)

    def save(self, *, epoch: int, step: int, worker_steps: list[int]) -> None:
        path = self._run.folder / checkpoint.FILE
        checkpoint.write(
            path, self._served.parts, self._run, epoch=epoch, step=step, worker_steps=worker_steps
        )

"""Coordinate asynchronous TensorFlow workers: schedule steps so that no worker of a cluster runs out."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import tensorflow as tf

from src.data import order
from src.data.batches import training_samples
from src.measure.recorder import Recorder
from src.runtime.common.async_coordinator import AsyncCoordinator, CompletedStep
from src.runtime.common.checkpoint_writer import CheckpointWriter
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import checkpoint
from src.runtime.tensorflow.parameter_server.server_model import ServerModel

# Scheduled calls for each worker, in progress or waiting: no worker should wait for the coordinator.
AHEAD = 2


class TensorFlowCoordinator(AsyncCoordinator):
    """Schedules steps and evaluations on the workers of a `ClusterCoordinator`."""

    def __init__(
        self,
        context: RankContext,
        recorders: list[Recorder],
        cluster: tf.distribute.experimental.coordinator.ClusterCoordinator,
        model: ServerModel,
        *,
        ahead: int | None = None,
    ) -> None:
        """Schedule on `cluster` the steps of `model`.

        Args:
            context: the coordinator's context.
            recorders: those of all workers, by rank.
            cluster: runs functions on the workers.
            model: the model, whose variables stand on the servers.
            ahead: how many calls may be in progress or waiting at once; by default two for each worker.
        """
        super().__init__(context, recorders)
        self._bytes = model.bytes
        self.batches_at_once = context.config.strategy["steps_per_execution"]
        self._cluster = cluster
        self._model = model
        max_calls = AHEAD * context.config.workers if ahead is None else ahead
        self._free = threading.Semaphore(max_calls)
        self._pool = ThreadPoolExecutor(max_calls)
        self._waiting: list[Future[None]] = []
        # Calls whose result was lost with its worker, each with its epoch; another worker repeats them.
        self._repeated: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()

    def schedule(self, batches: np.ndarray, epoch: int) -> None:
        """Schedule steps on each worker's part of global batches of indices [steps, batch].

        This method waits while the workers have enough to do.
        """
        workers = self._context.config.workers
        slices = [
            order.even_slice(self._context.config.global_batch, rank, workers) for rank in range(workers)
        ]
        # An epoch's last call may have fewer steps, for which no function was traced: then one step a call.
        done = self.scheduled
        for group in [batches] if len(batches) in self._model.steps else batches[:, None]:
            for part in slices:
                self._schedule(group[:, part], epoch, done)
            done += len(group)

    def step_bytes(self, rank: int) -> tuple[float, float]:
        """Return the bytes that a step fetches, and those that it pushes: all variables, both times."""
        return self._bytes, self._bytes

    def _schedule(self, indices: np.ndarray, epoch: int, done: int) -> None:
        """Schedule steps on samples `indices` [steps, part] for any worker, once few enough calls wait.

        They are parts of the global batches that follow the first `done` ones.
        """
        self._free.acquire()
        arrays = self._context.arrays
        samples = training_samples(arrays, self._context.config, indices, epoch - 1)
        images, labels = samples.inputs[0], samples.targets[0]
        batch = tf.constant(images), tf.constant(labels), tf.constant(done, tf.int64)
        remote = self._cluster.schedule(self._model.steps[len(indices)], args=batch)

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

    def _collect(self, remote: Any, epoch: int) -> None:
        """Wait for the figures of a call's steps, and report the steps."""
        for rank, loss, correct, staleness, *times in remote.fetch().tolist():
            began, fetched, computed, pushed = times
            samples = self._context.config.worker_batch
            step = CompletedStep(
                int(rank), loss, [correct], int(staleness), began, fetched, computed, pushed, samples
            )
            self.report(step, epoch)

    def join(self) -> None:
        """Wait until every scheduled step is done and has been reported.

        Raises `tf.errors.UnavailableError` where a server was lost.
        """
        self._cluster.join()
        wait(self._waiting)
        while not self._repeated.empty():
            self._collect(*self._repeated.get())

    def score(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the metrics over the test set, scored by the present workers."""
        arrays = self._context.arrays
        whole = slice(0, arrays.test_samples)
        remotes = [
            self._cluster.schedule(
                self._model.score,
                args=(tf.constant(arrays.test.inputs[0][part]), tf.constant(arrays.test.targets[0][part])),
            )
            for part in order.pieces(whole, self._context.config.evaluation_batch)
        ]
        self._cluster.join()
        loss, *sums = np.sum([remote.fetch() for remote in remotes], axis=0, dtype=float)
        return float(loss) / arrays.test_samples, self.metrics(np.array(sums), arrays.test_samples)

    def save(self, writer: CheckpointWriter, *, epoch: int, step: int, worker_steps: list[int]) -> None:
        """Have a checkpoint written after `epoch` whole epochs and `step` steps of the next, if finite."""
        parts = self._model.parts
        checkpoint.write(writer, self._context, parts, epoch=epoch, step=step, worker_steps=worker_steps)

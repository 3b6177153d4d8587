"""Every test sample once, shared among the devices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from src.data import order
from src.runtime.tensorflow import training as runtime
from src.worker import Run


class Evaluation:
    """Scores a model on the test set under a `tf.distribute` strategy; made once, called often.

    `forward(images, training=False)` gives logits [samples, classes] from uint8 images. Each replica has
    moved `buffers` by its own samples: all are scored with the first one's.
    """

    def __init__(
        self,
        run: Run,
        strategy: tf.distribute.Strategy,
        forward: Callable[..., tf.Tensor],
        buffers: Sequence[Any] = (),
    ) -> None:
        self._run = run
        self._strategy = strategy
        # Not the states of random generators.
        moved = [variable for variable in buffers if tf.as_dtype(variable.dtype).is_floating]
        self._differ = bool(moved) and strategy.num_replicas_in_sync > 1

        def take_first() -> None:
            context = tf.distribute.get_replica_context()
            first = context.replica_id_in_sync_group == 0
            for variable in moved:
                value = tf.convert_to_tensor(variable.value)
                mine = tf.where(first, value, tf.zeros_like(value))
                variable.assign(context.all_reduce(tf.distribute.ReduceOp.SUM, mine))

        self._share_buffers = tf.function(lambda: strategy.run(take_first))

        def replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            logits = forward(images, training=False)
            loss = tf.reduce_sum(runtime.per_sample_loss(labels, logits))
            return tf.stack([loss, runtime.hits(labels, logits)])

        @tf.function(reduce_retracing=True)
        def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return strategy.reduce("SUM", strategy.run(replica, args=(images, labels)), axis=None)

        self._step = step

    def __call__(self) -> tuple[float, float, float]:
        """(mean loss, accuracy, seconds)."""
        start = time.perf_counter()
        if self._differ:
            self._share_buffers()
        arrays = self._run.arrays
        total = np.zeros(2)
        for parts in self._pieces():
            images = self._given(arrays.test_images, parts)
            labels = self._given(arrays.test_labels, parts)
            total += self._step(images, labels).numpy()
        loss, accuracy = (float(value) for value in total / arrays.test_samples)
        return loss, accuracy, time.perf_counter() - start

    def _pieces(self) -> list[list[slice]]:
        """For each step every replica's piece: as many for each, and no two differ by more than one."""
        replicas = self._strategy.num_replicas_in_sync
        count = self._run.arrays.test_samples
        steps = math.ceil(count / replicas / self._run.config.evaluation_batch)
        return [
            [order.shard(count, step * replicas + replica, steps * replicas) for replica in range(replicas)]
            for step in range(steps)
        ]

    def _given(self, array: Any, parts: list[slice]) -> Any:
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(array[parts[context.replica_id_in_sync_group]])
        )

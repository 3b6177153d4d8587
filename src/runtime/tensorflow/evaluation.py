"""Score every test sample once, with the test set divided among the devices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from src.data import order
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import setup


class Evaluation:
    """A callable that scores a model on the test set under a `tf.distribute` strategy."""

    def __init__(
        self,
        context: RankContext,
        strategy: tf.distribute.Strategy,
        forward: Callable[..., tf.Tensor],
        buffers: Sequence[Any] = (),
    ) -> None:
        """Prepare the scoring; its functions are compiled when they are first called.

        Args:
            context: the rank's context.
            strategy: whose replicas score.
            forward: `forward(images, training=False)` returns logits [samples, classes] of uint8 images
                [samples, height, width, channels].
            buffers: variables that each replica has changed by its own samples. Before scoring, all replicas
                take the first replica's values.
        """
        self._context = context
        self._strategy = strategy
        task = setup.make_task(context)
        # The states of random generators, which aren't floating-point, are left out.
        statistics = [variable for variable in buffers if tf.as_dtype(variable.dtype).is_floating]
        self._buffers_differ = bool(statistics) and strategy.num_replicas_in_sync > 1

        def take_first() -> None:
            replica_context = tf.distribute.get_replica_context()
            first = replica_context.replica_id_in_sync_group == 0
            for variable in statistics:
                value = tf.convert_to_tensor(variable.value)
                summand = tf.where(first, value, tf.zeros_like(value))
                variable.assign(replica_context.all_reduce(tf.distribute.ReduceOp.SUM, summand))

        self._share_buffers = tf.function(lambda: strategy.run(take_first))

        def replica_score(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return task.score(labels, forward(images, training=False))

        @tf.function(reduce_retracing=True)
        def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return strategy.reduce("SUM", strategy.run(replica_score, args=(images, labels)), axis=None)

        self._step = step

    def __call__(self) -> tuple[float, float, float]:
        """Score the whole test set; return (mean loss, accuracy, seconds)."""
        start = time.perf_counter()
        if self._buffers_differ:
            self._share_buffers()
        arrays = self._context.arrays
        total = np.zeros(2)
        for parts in self._pieces():
            images = self._distribute(arrays.test.inputs[0], parts)
            labels = self._distribute(arrays.test.targets[0], parts)
            total += self._step(images, labels).numpy()
        loss, accuracy = (float(value) for value in total / arrays.test_samples)
        return loss, accuracy, time.perf_counter() - start

    def _pieces(self) -> list[list[slice]]:
        """Return the slices of the test set that each replica scores, by step and by replica.

        Every replica has as many slices as the others, and the sizes of any two differ by one sample at most.
        """
        replicas = self._strategy.num_replicas_in_sync
        count = self._context.arrays.test_samples
        steps = math.ceil(count / replicas / self._context.config.evaluation_batch)
        return [
            [
                order.even_slice(count, step * replicas + replica, steps * replicas)
                for replica in range(replicas)
            ]
            for step in range(steps)
        ]

    def _distribute(self, array: Any, parts: list[slice]) -> Any:
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(array[parts[context.replica_id_in_sync_group]])
        )

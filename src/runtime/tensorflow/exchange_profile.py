"""Measure the exchange of TensorFlow's collectives: all-reduce. They offer neither send nor receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from src.measure.recorder import Recorder
from src.runtime.common import exchange_profile
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import setup
from src.runtime.tensorflow.distribution import join_cluster


class CollectiveBackend:
    """The collectives of `MultiWorkerMirroredStrategy`, as its workers use them at every step."""

    sends = False

    def __init__(self, name: str, rank: int, hosts: Sequence[str], strategy: tf.distribute.Strategy) -> None:
        self.name, self.rank, self.hosts = name, rank, hosts

        @tf.function(reduce_retracing=True)
        def all_reduce(tensor: tf.Tensor) -> tf.Tensor:
            return strategy.reduce("SUM", strategy.run(tf.identity, args=(tensor,)), axis=None)

        self._all_reduce = all_reduce

    def make(self, size: int) -> tf.Tensor:
        """Make a tensor of `size` bytes."""
        return tf.zeros([size // 4], tf.float32)

    def barrier(self) -> None:
        """Wait for all workers."""
        self._sum(self.make(4))

    def operations(self) -> Mapping[str, tuple[Callable[[tf.Tensor], None], int]]:
        """Return all-reduce."""
        return {"all_reduce": (self._sum, 1)}

    def _sum(self, tensor: tf.Tensor) -> None:
        self._all_reduce(tensor).numpy()

    def send(self, buffer: tf.Tensor, to: int) -> None:
        """Raise `NotImplementedError`: nobody can."""
        raise NotImplementedError

    def receive(self, buffer: tf.Tensor, sender: int) -> None:
        """Raise `NotImplementedError`: nobody can."""
        raise NotImplementedError


def train(context: RankContext, recorder: Recorder) -> None:
    """Measure, in the place of a training."""
    setup.configure(context)
    name = f"tensorflow {context.config.strategy['communication']}"
    hosts = exchange_profile.worker_hosts(context)
    backend = CollectiveBackend(name, context.rank, hosts, join_cluster(context))
    setup.keep(backend)
    exchange_profile.run(context, recorder, backend)

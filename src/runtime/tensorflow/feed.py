"""Batches as a tf.data pipeline: a batch is one indexed read of the memory map, with no Python a sample."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from src.data import order
from src.worker import Run

AHEAD = 2


def steps_per_epoch(run: Run) -> int:
    """Optimizer steps of one epoch; the last partial batch is dropped."""
    return order.steps_per_epoch(run.arrays.train_samples, run.config.global_batch)


def batches(run: Run, epoch: int, *, first: int = 0) -> tf.data.Dataset:
    """Global batches of one epoch from step `first`: uint8 images [batch, H, W, C] and labels [batch]."""
    images, labels = run.arrays.train_images, run.arrays.train_labels
    start = epoch * steps_per_epoch(run)

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for chosen in indices(run, start + first, start + steps_per_epoch(run)):
            yield images[chosen], labels[chosen]

    return _dataset(run, read, [run.config.global_batch])


def shards(run: Run, replicas: int, together: int, *, first: int = 0) -> tf.data.Dataset:
    """A replica's share of `together` steps after the other, from step `first`: this process's replicas
    in turn.

    Elements are uint8 images [steps, share, H, W, C] and labels [steps, share]; an epoch's last ones
    have fewer steps. Replicas of several processes are numbered on, rank by rank.
    """
    images, labels = run.arrays.train_images, run.arrays.train_labels
    everyone = replicas * run.world_size
    size = run.config.global_batch
    mine = [order.shard(size, run.rank * replicas + number, everyone) for number in range(replicas)]
    per_epoch = steps_per_epoch(run)

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        group: list[np.ndarray] = []
        for done, chosen in enumerate(indices(run, first, per_epoch * run.config.epochs), first + 1):
            group.append(chosen)
            if len(group) < together and done % per_epoch:
                continue
            whole = np.stack(group)
            group.clear()
            for part in mine:
                yield images[whole[:, part]], labels[whole[:, part]]

    # Without an end, workers needn't ask each other before each step whether all have a batch.
    return _dataset(run, read, [None, size // everyone]).repeat()


def indices(run: Run, first: int, last: int) -> Iterator[np.ndarray]:
    """Of the steps from `first`, counted over all epochs, to before `last`."""
    config = run.config
    return order.batches(run.arrays.train_samples, config.global_batch, config.seed, first, last)


def _dataset(run: Run, read: object, shape: list[int | None]) -> tf.data.Dataset:
    signature = (
        tf.TensorSpec((*shape, *run.arrays.shape), tf.uint8),
        tf.TensorSpec(shape, tf.int64),
    )
    options = tf.data.Options()
    # One thread for the reading, on the device's own cores; the steps are the rest's.
    options.threading.private_threadpool_size = 1
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = tf.data.Dataset.from_generator(read, output_signature=signature)
    return dataset.prefetch(AHEAD).with_options(options)

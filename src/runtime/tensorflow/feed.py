"""Batches as a tf.data pipeline: Python draws indices, and TensorFlow reads samples from the mapped file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    start = epoch * steps_per_epoch(run)

    def read() -> Iterator[np.ndarray]:
        return indices(run, start + first, start + steps_per_epoch(run))

    return _dataset(run, read, [run.config.global_batch])


def shards(run: Run, replicas: int, together: int, *, first: int = 0) -> tf.data.Dataset:
    """A replica's share of `together` steps after the other, from step `first`: this process's replicas
    in turn.

    Elements are uint8 images [steps, share, H, W, C] and labels [steps, share]; an epoch's last ones
    have fewer steps. Replicas of several processes are numbered on, rank by rank.
    """
    everyone = replicas * run.world_size
    size = run.config.global_batch
    mine = [order.shard(size, run.rank * replicas + number, everyone) for number in range(replicas)]
    per_epoch = steps_per_epoch(run)

    def read() -> Iterator[np.ndarray]:
        group: list[np.ndarray] = []
        for done, found in enumerate(indices(run, first, per_epoch * run.config.epochs), first + 1):
            group.append(found)
            if len(group) < together and done % per_epoch:
                continue
            whole = np.stack(group)
            group.clear()
            for part in mine:
                yield whole[:, part]

    # Without an end, workers needn't ask each other before each step whether all have a batch.
    return _dataset(run, read, [None, size // everyone]).repeat()


def indices(run: Run, first: int, last: int) -> Iterator[np.ndarray]:
    """Of the global batches [batch] of the steps from `first`, counted over all epochs, to before `last`."""
    config, per_epoch = run.config, steps_per_epoch(run)
    permutation = None
    for done in range(first, last):
        epoch, step = divmod(done, per_epoch)
        if permutation is None or step == 0:
            permutation = order.epoch_order(run.arrays.train_samples, config.seed, epoch)
        yield order.batch_indices(permutation, step, config.global_batch)


def rows(array: np.memmap, chosen: tf.Tensor) -> tf.Tensor:
    """`array[chosen]`, read from the mapped file in the graph: other samples are neither read nor copied.

    `array` begins with the first row of its file.
    """
    skipped = array.offset // array.itemsize
    # TensorFlow maps the file again, header included.
    whole = tf.raw_ops.ImmutableConst(
        dtype=array.dtype, shape=[skipped + array.size], memory_region_name=str(array.filename)
    )
    return tf.gather(tf.reshape(whole[skipped:], array.shape), chosen)


def _dataset(run: Run, read: Callable[[], Iterator[np.ndarray]], shape: list[int | None]) -> tf.data.Dataset:
    options = tf.data.Options()
    # One thread for the reading, on the device's own cores; the steps are the rest's.
    options.threading.private_threadpool_size = 1
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    arrays = run.arrays
    dataset = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec(shape, tf.int64))
    dataset = dataset.map(
        lambda chosen: (rows(arrays.train_images, chosen), rows(arrays.train_labels, chosen))
    )
    return dataset.prefetch(AHEAD).with_options(options)

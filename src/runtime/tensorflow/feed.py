"""Feed batches through tf.data: a batch is one indexed read of the memory map, with no loop over samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from src.data import order
from src.data.batches import training_batches, training_samples
from src.runtime.common.context import RankContext

# Batches that are read before they are needed.
AHEAD = 2


def steps_per_epoch(context: RankContext) -> int:
    """Return the number of optimizer steps in an epoch; an epoch's last partial batch is dropped."""
    return order.steps_per_epoch(context.arrays.train_samples, context.config.global_batch)


def batches(context: RankContext, epoch: int, *, first: int = 0) -> tf.data.Dataset:
    """Return a dataset of the global batches of one epoch.

    Elements are uint8 images [batch, H, W, C] and labels [batch].

    Args:
        context: the rank's context.
        epoch: the epoch, from 0.
        first: how many of the epoch's batches to leave out, which a resumed run has trained on already.
    """
    start = epoch * steps_per_epoch(context)

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for batch in indices(context, start + first, start + steps_per_epoch(context)):
            yield _images_and_labels(context, batch, epoch)

    return _dataset(context, read, [context.config.global_batch])


def replica_batches(
    context: RankContext, replicas: int, steps_at_once: int, *, first: int = 0
) -> tf.data.Dataset:
    """Return a dataset of the parts of batches that this process's replicas train on, in turn.

    Elements are uint8 images [steps, part, H, W, C] and labels [steps, part]. They have `steps_at_once`
    steps, and fewer where an epoch ends. Parts of a batch are numbered rank by rank, and replica by replica
    within a rank.

    Args:
        context: the rank's context.
        replicas: how many replicas this process has.
        steps_at_once: how many steps a call of the training function takes.
        first: how many steps are done already, over all epochs; a resumed run goes on after them.
    """
    all_replicas = replicas * context.world_size
    size = context.config.global_batch
    parts = [
        order.even_slice(size, context.rank * replicas + number, all_replicas) for number in range(replicas)
    ]
    per_epoch = steps_per_epoch(context)

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        group: list[np.ndarray] = []
        for step, batch in enumerate(indices(context, first, per_epoch * context.config.epochs), first + 1):
            group.append(batch)
            if len(group) < steps_at_once and step % per_epoch:
                continue
            whole = np.stack(group)
            group.clear()
            for part in parts:
                yield _images_and_labels(context, whole[:, part], (step - 1) // per_epoch)

    # Without an end, workers needn't ask each other before each step whether all have a batch.
    return _dataset(context, read, [None, size // all_replicas]).repeat()


def indices(context: RankContext, first: int, last: int) -> Iterator[np.ndarray]:
    """Yield the indices [batch] of each global batch from step `first` to before step `last`.

    Steps are counted from 0, over all epochs.
    """
    return training_batches(context.config, context.arrays.train_samples, first, last)


def _images_and_labels(
    context: RankContext, indices: np.ndarray, epoch: int
) -> tuple[np.ndarray, np.ndarray]:
    samples = training_samples(context.arrays, context.config, indices, epoch)
    return samples.inputs[0], samples.targets[0]


def _dataset(context: RankContext, read: object, shape: list[int | None]) -> tf.data.Dataset:
    signature = (
        tf.TensorSpec((*shape, *context.arrays.shape), tf.uint8),
        tf.TensorSpec(shape, tf.int64),
    )
    options = tf.data.Options()
    # Reading takes one thread, on the device's own cores; the other threads are left to the steps.
    options.threading.private_threadpool_size = 1
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = tf.data.Dataset.from_generator(read, output_signature=signature)
    return dataset.prefetch(AHEAD).with_options(options)

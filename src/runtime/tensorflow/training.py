"""What every TensorFlow strategy shares: threads, seeded model, the shared order of samples, evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from src.data import order
from src.measure import memory
from src.measure.recorder import Recorder
from src.models import adapt
from src.worker import Run


def configure(run: Run) -> None:
    """Threads to match the rank's cores; call it before any operation runs."""
    tf.config.threading.set_intra_op_parallelism_threads(len(run.cores))
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def build(run: Run) -> keras.Model:
    """The whole model with the seed's weights."""
    keras.utils.set_random_seed(run.config.seed)
    return adapt.build(run.config, classes=run.arrays.classes, shape=run.arrays.shape)


def optimizer(run: Run) -> keras.optimizers.Optimizer:
    """The optimizer of the configuration."""
    chosen = run.config.optimizer
    if chosen["name"] == "adam":
        return keras.optimizers.Adam(chosen["lr"])
    return keras.optimizers.SGD(chosen["lr"], momentum=chosen["momentum"])


def normalise(run: Run, images: tf.Tensor) -> tf.Tensor:
    """Float images [batch, height, width, channels] from uint8 ones."""
    mean, std = (tf.constant(values, tf.float32) * 255 for values in (run.arrays.mean, run.arrays.std))
    return (tf.cast(images, tf.float32) - mean) / std


def batches(run: Run, recorder: Recorder, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """This rank's uint8 images and labels, step by step, in the order shared by all strategies."""
    config, arrays = run.config, run.arrays
    permutation = order.epoch_order(arrays.train_samples, config.seed, epoch)
    mine = order.shard(config.global_batch, run.rank, run.world_size)
    for step in range(order.steps_per_epoch(arrays.train_samples, config.global_batch)):
        with recorder.waiting_for_input():
            indices = order.batch_indices(permutation, step, config.global_batch)[mine]
            batch = arrays.train_images[indices], arrays.train_labels[indices]
        yield batch


def per_sample_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Cross-entropy [batch] of integer labels and logits [batch, classes]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def evaluate(run: Run, model: keras.Model) -> tuple[float, float, float]:
    """(mean loss, accuracy, seconds) on every test sample once."""
    start = time.perf_counter()
    step = getattr(model, "_scaleguide_evaluation", None)
    if step is None:

        @tf.function(reduce_retracing=True)
        def step(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            logits = model(normalise(run, images), training=False)
            hits = tf.equal(tf.argmax(logits, 1), labels)
            return tf.reduce_sum(per_sample_loss(labels, logits)), tf.reduce_sum(tf.cast(hits, tf.int64))

        model._scaleguide_evaluation = step
    arrays, total, correct = run.arrays, 0.0, 0
    for part in order.pieces(slice(0, arrays.test_samples), run.config.evaluation_batch):
        loss, hits = step(tf.constant(arrays.test_images[part]), tf.constant(arrays.test_labels[part]))
        total, correct = total + float(loss), correct + int(hits)
    count = arrays.test_samples
    return total / count, correct / count, time.perf_counter() - start


def finish(recorder: Recorder, model: keras.Model, status: str) -> None:
    """Ends the record with what is measured outside the clock."""
    recorder.facts |= memory.peak()
    trained: list[Any] = model.trainable_variables
    recorder.facts["parameters"] = int(sum(np.prod(variable.shape) for variable in trained))
    normalising = (keras.layers.BatchNormalization,)
    recorder.facts["batch_statistics"] = any(
        isinstance(layer, normalising) for layer in model._flatten_layers()
    )
    recorder.flush()
    recorder.finish("diverged" if recorder.diverged else status)

"""What every TensorFlow strategy shares: devices and threads, the seeded model, its loss and optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from src.measure import memory
from src.measure.recorder import Recorder
from src.models import adapt
from src.worker import Run

# What a worker has of a GPU that several share (`hardware.share_devices`, for correctness only).
SHARED_GPU_MIB = 4096


_kept: list[Any] = []


def keep(*things: Any) -> None:
    """Until the process ends, which a rank does at once: taking a data pipeline or a cluster down waits for
    their threads, 5 to 15 s."""
    _kept.extend(things)


def configure(run: Run) -> list[str]:
    """This process's devices by name, with threads to match; call it before any operation runs.

    A process that trains for several workers has a device for each: a GPU, or a logical CPU. Logical
    CPUs share one pool of threads: as many operations run at once as there are devices, each with as
    many threads as a device has cores.
    """
    count = run.config.workers // run.world_size
    kind = "GPU" if run.config.hardware["device"] == "gpu" else "CPU"
    physical = tf.config.list_physical_devices(kind)
    if count > len(physical):
        share = {"memory_limit": SHARED_GPU_MIB} if kind == "GPU" else {}
        logical = [tf.config.LogicalDeviceConfiguration(**share)] * count
        tf.config.set_logical_device_configuration(physical[0], logical)
    else:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.threading.set_intra_op_parallelism_threads(max(1, len(run.cores) // count))
    tf.config.threading.set_inter_op_parallelism_threads(count)
    if run.config.strategy.get("deterministic", False):
        tf.config.experimental.enable_op_determinism()
    if run.config.precision == "bf16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    memory.start()
    return [f"{kind}:{number}" for number in range(count)]


def build(run: Run) -> keras.Model:
    """The whole model with the seed's weights."""
    keras.utils.set_random_seed(run.config.seed)
    return adapt.build(run.config, classes=run.arrays.classes, shape=run.arrays.shape)


def optimizer(run: Run) -> keras.optimizers.Optimizer:
    """The optimizer of the configuration."""
    chosen = run.config.optimizer
    if chosen["name"] == "adam":
        return keras.optimizers.Adam(chosen["lr"])
    if chosen["name"] == "adagrad":
        # As torch's, and Duchi 2011: no accumulated gradient to begin with.
        return keras.optimizers.Adagrad(chosen["lr"], initial_accumulator_value=0.0, epsilon=1e-10)
    return keras.optimizers.SGD(chosen["lr"], momentum=chosen["momentum"])


def normalise(run: Run, images: tf.Tensor) -> tf.Tensor:
    """Images [batch, height, width, channels] of the model's type from uint8 ones."""
    kind = keras.config.floatx()
    mean, std = (tf.constant(values, kind) * 255 for values in (run.arrays.mean, run.arrays.std))
    return (tf.cast(images, kind) - mean) / std


def per_sample_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Cross-entropy [batch] of integer labels and logits [batch, classes]."""
    logits = tf.cast(logits, keras.config.floatx())
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def share_of_loss(run: Run, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Summed cross-entropy over the global batch: parts of a batch add up to its mean."""
    size = run.config.global_batch
    return tf.nn.compute_average_loss(per_sample_loss(labels, logits), global_batch_size=size)


def hits(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """The number of correct answers."""
    return tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), labels), keras.config.floatx()))


def gradient_bytes(model: keras.Model) -> int:
    """Of one gradient of all trained variables."""
    return int(sum(np.prod(v.shape) * tf.as_dtype(v.dtype).size for v in model.trainable_variables))


def described(parts: Sequence[keras.Model]) -> dict[str, Any]:
    """Facts of the model that `parts` make up."""
    trained: list[Any] = [variable for part in parts for variable in part.trainable_variables]
    layers = [layer for part in parts for layer in part._flatten_layers()]
    return {
        "parameters": int(sum(np.prod(variable.shape) for variable in trained)),
        "batch_statistics": any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers),
    }


def finish(recorder: Recorder, parts: Sequence[keras.Model], status: str) -> None:
    """Ends the record with what is measured outside the clock; `parts` make up the model."""
    recorder.facts |= memory.peak() | described(parts)
    recorder.finish(status)

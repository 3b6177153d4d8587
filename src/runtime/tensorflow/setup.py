"""Set a process up for TensorFlow: devices and threads, the seeded model and the task."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from src.compat.keras import layers_of
from src.data.random_streams import RandomStream, key
from src.measure import memory
from src.measure.memory import PeakMemory
from src.measure.rank_record import RankRecord
from src.measure.recorder import Recorder
from src.models import adapt
from src.run import files
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import peak
from src.tasks.make import make
from src.tasks.tensorflow.classification import Classification

# Memory of each worker on a GPU that several workers share (`hardware.share_devices`, for correctness only).
SHARED_GPU_MIB = 4096
_referenced: list[Any] = []


def keep(*objects: Any) -> None:
    """Hold references to objects until the process ends, so that none is freed before.

    To free a data pipeline or a cluster waits 5 to 15 s for their threads; a rank's process ends at once.
    """
    _referenced.extend(objects)


def configure(context: RankContext) -> list[str]:
    """Configure this process's devices and threads, and return the devices' names.

    Call this function before any operation runs.

    A process that trains for several workers has a device for each: a GPU, or a logical CPU. Logical CPUs
    share one pool of threads: as many operations run at once as there are devices, each with as many threads
    as a device has cores.
    """
    folder = files.rank_folder(context.folder, context.rank)
    if folder.is_dir():
        # AutoGraph writes the code that it generates into files, and would remove them at an orderly exit.
        tempfile.tempdir = str(folder)
    count = context.config.workers // context.world_size
    kind = "GPU" if context.config.hardware.device == "gpu" else "CPU"
    physical = tf.config.list_physical_devices(kind)
    if count > len(physical):
        share = {"memory_limit": SHARED_GPU_MIB} if kind == "GPU" else {}
        logical = [tf.config.LogicalDeviceConfiguration(**share)] * count
        tf.config.set_logical_device_configuration(physical[0], logical)
    else:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.threading.set_intra_op_parallelism_threads(max(1, len(context.cores) // count))
    tf.config.threading.set_inter_op_parallelism_threads(count)
    if context.config.strategy.get("deterministic", False):
        tf.config.experimental.enable_op_determinism()
    if context.config.precision == "bf16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    memory.mark_level()
    return [f"{kind}:{number}" for number in range(count)]


def build(context: RankContext) -> keras.Model:
    """Build the whole model with the seed's weights."""
    keras.utils.set_random_seed(key(RandomStream.WEIGHTS, context.config.seed))
    arrays = context.arrays
    model: keras.Model = adapt.build(
        context.config, classes=arrays.classes, shape=arrays.shape, train_samples=arrays.train_samples
    )
    if not model.built:
        # One that says nothing of its input has no weights before it has seen one.
        model(keras.Input(arrays.shape))
    return model


def with_added(context: RankContext, loss: tf.Tensor, added: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the loss [] of a micro-batch of one worker, with what the model adds to it itself.

    Regularisers add something, and `add_loss`. All micro-batches of a global batch together add their mean,
    as Keras's own rule has it for replicas.
    """
    config = context.config
    return loss + tf.add_n(added) / (config.data_parallel_degree * config.microbatches) if added else loss


def normalise(context: RankContext, images: tf.Tensor) -> tf.Tensor:
    """Normalise uint8 images [batch, height, width, channels]; return them in Keras's floating-point type."""
    kind = keras.config.floatx()
    mean, std = (tf.constant(values, kind) * 255 for values in (context.arrays.mean, context.arrays.std))
    return (tf.cast(images, kind) - mean) / std


def weights(model: keras.Model) -> dict[str, np.ndarray]:
    """Return a model's weights by their places; Keras counts the names of a process's layers on."""
    return {f"weight {place}": weight.numpy() for place, weight in enumerate(model.weights)}


def make_task(context: RankContext) -> Classification:
    """Make the configured task."""
    task: Classification = make(context.config, classes=context.arrays.classes, shape=context.arrays.shape)
    return task


def loss_contribution(
    context: RankContext, task: Classification, labels: tf.Tensor, logits: tf.Tensor
) -> tf.Tensor:
    """Return the summed loss [] of a part of a batch, divided by the size of the global batch.

    The contributions of all parts add up to the global batch's mean loss.

    Args:
        context: the rank's context.
        task: gives the loss of each sample.
        labels: [samples].
        logits: [samples, classes].
    """
    size = context.config.global_batch
    return tf.nn.compute_average_loss(task.per_sample_loss(labels, logits), global_batch_size=size)


def gradient_bytes(model: keras.Model) -> int:
    """Return how many bytes the gradients of all trained variables take."""
    return int(sum(np.prod(v.shape) * tf.as_dtype(v.dtype).size for v in model.trainable_variables))


def facts(parts: Sequence[keras.Model]) -> RankRecord:
    """Return the facts of a model for the record: its parameters, and whether it has BatchNorm.

    Args:
        parts: the model, or the stages that it was cut into.
    """
    trained: list[Any] = [variable for part in parts for variable in part.trainable_variables]
    layers = [layer for part in parts for layer in layers_of(part)]
    return {
        "parameters": int(sum(np.prod(variable.shape) for variable in trained)),
        "batch_statistics": any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers),
    }


def peak_memory(context: RankContext) -> PeakMemory:
    """Return the peak of TensorFlow's allocator on the GPU where it is highest, or on a CPU the process's."""
    if context.config.hardware.device != "gpu":
        return memory.peak()
    # In a cluster the other processes' GPUs have logical devices here, too.
    own = range(context.config.workers // context.world_size)
    peaks = [tf.config.experimental.get_memory_info(f"GPU:{number}")["peak"] for number in own]
    return {"memory_peak_bytes": max(peaks), "memory_level_bytes": 0}


def finish(context: RankContext, recorder: Recorder, parts: Sequence[keras.Model], status: str) -> None:
    """Finish the record with the memory's peak, the facts of the model and the peak of the device.

    Args:
        context: the rank's context.
        recorder: the rank's recorder.
        parts: the model, or the stages that it was cut into.
        status: how the training ended.
    """
    recorder.facts |= peak_memory(context)
    recorder.facts |= facts(parts) | peak.facts(context)
    recorder.finish(status)

"""Paper 2's MPI program, done right: a Keras model under a `tf.function` loop, gradients summed by mpi4py.

Paper 2 prints 35.49 s for it. Its log shows the whole training set on each rank (1,875 steps an epoch) and no
exchange of gradients, and its time is a sum over ranks divided by a rank's number: that is no data-parallel
time. `strategy.sync` shows what each variant really does, all of them on a rank's own shard of each batch:

    gradients       summed at every step: what one device computes from the whole batch
    epoch_average   parameters averaged at the end of each epoch: a working reading of the paper
    none            no exchange: as many models as ranks, of which rank 0's is evaluated
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from src.data import order
from src.measure.recorder import Recorder
from src.runtime.mpi import World
from src.runtime.tensorflow import custom_loop, feed
from src.runtime.tensorflow import training as runtime
from src.runtime.tensorflow.checkpoint import Checkpoints
from src.runtime.tensorflow.conductor import Conductor
from src.runtime.tensorflow.evaluation import Evaluation
from src.worker import Run

# (images [1, share, H, W, C], labels [1, share], is it late) -> (mean loss, correct answers of the global
# batch, is some rank late).
Step = Callable[[tf.Tensor, tf.Tensor, bool], tuple[float, float, bool]]


def train(run: Run, recorder: Recorder) -> None:
    """Trains this rank's copy on its shard of every batch."""
    runtime.configure(run)
    world = World(run, recorder)
    make = {"gradients": _synchronous, "epoch_average": _averaging, "none": _alone}
    copy, step, evaluate = make[run.config.strategy["sync"]](run, recorder, world)
    # Of ranks that aren't one model there are none: the configuration says so.
    checkpoints = Checkpoints(run, recorder, copy.parts, world.meet)
    first = checkpoints.resume()
    conductor = Conductor(run, recorder, evaluate, checkpoints)
    batches: Iterator[Any] = iter(feed.shards(run, 1, 1, first=first))
    runtime.keep(batches)
    conductor.begin()
    while conductor.status is None:
        with recorder.waiting_for_input():
            images, labels = next(batches)
        loss, correct, late = step(images, labels, conductor.late)
        conductor.completed([loss], correct, late=late)
    done = recorder.steps - first
    if 0 < done < recorder.trained_steps:
        # Before the job was started again each step handed over as many.
        recorder.payload_bytes = recorder.payload_bytes // done * recorder.trained_steps
    world.leave()
    runtime.finish(recorder, [copy.model], conductor.status)


Made = tuple[custom_loop.Copy, Step, Callable[[], tuple[float, float, float]]]


def _synchronous(run: Run, recorder: Recorder, world: World) -> Made:
    """Gradients, the loss, the correct answers and who is late: one buffer, summed over the ranks."""
    copy = _copy(run, world)
    sizes = [int(np.prod(variable.shape)) for variable in copy.variables]
    kind = keras.config.floatx()

    @tf.function
    def backward(images: tf.Tensor, labels: tf.Tensor, late: tf.Tensor) -> tf.Tensor:
        found, loss, correct = custom_loop.accumulate(copy, images[0], labels[0], run.config.microbatches)
        flat = [tf.reshape(gradient, [-1]) for gradient in found]
        return tf.concat([*flat, tf.stack([loss, correct, tf.cast(late, kind)])], 0)

    @tf.function(input_signature=[tf.TensorSpec([sum(sizes)], kind)])
    def apply(summed: tf.Tensor) -> None:
        parts = zip(tf.split(summed, sizes), copy.variables, strict=True)
        copy.apply([tf.reshape(part, variable.shape) for part, variable in parts])

    def step(images: tf.Tensor, labels: tf.Tensor, late: bool) -> tuple[float, float, bool]:
        total = world.sum_for_training(backward(images, labels, tf.constant(late)).numpy())
        apply(total[:-3])
        loss, correct, lates = total[-3:].tolist()
        return loss, correct, lates > 0

    return copy, step, _shared_evaluation(run, world, copy)


def _alone(run: Run, recorder: Recorder, world: World) -> Made:
    """A step on the rank's own share, whose mean it takes; nothing is exchanged."""
    copy = _copy(_with_own_batch(run), world)

    @tf.function
    def trained(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        found, loss, correct = custom_loop.accumulate(copy, images[0], labels[0], run.config.microbatches)
        copy.apply(found)
        return tf.stack([loss, correct])

    def step(images: tf.Tensor, labels: tf.Tensor, late: bool) -> tuple[float, float, bool]:
        loss, correct = trained(images, labels).numpy().tolist()
        # Its share of correct answers stands for the batch's.
        return loss, correct * world.size, late

    # Of its own model, whole: ranks at different parameters can't share an evaluation.
    return copy, step, Evaluation(run, tf.distribute.get_strategy(), copy.forward)


def _averaging(run: Run, recorder: Recorder, world: World) -> Made:
    """As `_alone`, with the ranks' parameters and buffers averaged after an epoch's last step.

    The optimizer's momentum stays a rank's own. A rank that ends earlier, late or diverged, averages then;
    the others meet it at the end of theirs, and end too.
    """
    copy, own_step, evaluate = _alone(run, recorder, world)
    averaged = [*copy.variables, *_floating(copy.buffers)]
    per_epoch = feed.steps_per_epoch(run)

    def step(images: tf.Tensor, labels: tf.Tensor, late: bool) -> tuple[float, float, bool]:
        loss, correct, late = own_step(images, labels, late)
        ends = late or not np.isfinite(loss)
        if ends or (recorder.steps + 1) % per_epoch == 0:
            total = world.sum_for_training(np.append(_flat(averaged), ends).astype(keras.config.floatx()))
            _assign(averaged, total[:-1] / world.size)
            late = total[-1] > 0
            # Diverged for all of them, whoever began.
            loss = loss if np.isfinite(total).all() else np.nan
        return loss, correct, late

    return copy, step, evaluate


def _copy(run: Run, world: World) -> custom_loop.Copy:
    """The seeded model, with rank 0's values."""
    copy = custom_loop.Copy(run)
    _take_first([*copy.variables, *_floating(copy.buffers)], world)
    return copy


def _with_own_batch(run: Run) -> Run:
    """The run of a rank whose share is its whole batch: its loss is the share's mean."""
    config = dataclasses.replace(run.config, batch=run.config.worker_batch, scaling="strong")
    return dataclasses.replace(run, config=config)


def _shared_evaluation(
    run: Run, world: World, copy: custom_loop.Copy
) -> Callable[[], tuple[float, float, float]]:
    """Each test sample once, on some rank, with rank 0's buffers: each has moved them by its own samples."""
    arrays = run.arrays
    part = order.shard(arrays.test_samples, run.rank, world.size)
    images, labels = arrays.test_images[part], arrays.test_labels[part]
    mine = dataclasses.replace(
        run, arrays=dataclasses.replace(arrays, test_images=images, test_labels=labels)
    )
    score = Evaluation(mine, tf.distribute.get_strategy(), copy.forward)

    def evaluate() -> tuple[float, float, float]:
        begun = time.perf_counter()
        _take_first(_floating(copy.buffers), world)
        loss, accuracy, _ = score()
        total = world.sum(np.array([loss, accuracy]) * len(labels))
        loss, accuracy = (total / arrays.test_samples).tolist()
        return loss, accuracy, time.perf_counter() - begun

    return evaluate


def _floating(variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    """Not the states of random generators."""
    return [variable for variable in variables if tf.as_dtype(variable.dtype).is_floating]


def _take_first(variables: Sequence[keras.Variable], world: World) -> None:
    if variables:
        _assign(variables, world.of_first(_flat(variables)))


def _flat(variables: Sequence[keras.Variable]) -> np.ndarray:
    return np.concatenate([variable.numpy().ravel() for variable in variables])


def _assign(variables: Sequence[keras.Variable], flat: np.ndarray) -> None:
    ends = np.cumsum([int(np.prod(variable.shape)) for variable in variables])
    for variable, values in zip(variables, np.split(flat, ends[:-1]), strict=True):
        variable.assign(values.reshape(variable.shape))

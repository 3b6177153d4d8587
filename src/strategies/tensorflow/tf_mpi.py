"""Paper 2's MPI program, corrected: a Keras model under a `tf.function` loop, gradients summed by mpi4py.

Paper 2 prints 35.49 s for its program. The paper's log shows the whole training set on each rank (1,875 steps
an epoch) and no exchange of gradients, and the time is a sum over ranks divided by a rank's number: that is
no data-parallel time. `strategy.sync` chooses between variants, in all of which a rank trains on its own part
of each batch:

    gradients       gradients are summed at every step: the update is that of one device for a whole batch
    epoch_average   parameters are averaged at the end of each epoch: a working reading of the paper
    none            nothing is exchanged: there are as many models as ranks, and rank 0's is evaluated
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
from src.runtime.common.context import RankContext
from src.runtime.common.learning_rate import LearningRate
from src.runtime.common.mpi_world import MPIWorld
from src.runtime.common.resume import complete_payload
from src.runtime.tensorflow import feed, setup
from src.runtime.tensorflow.callback import TrainingCallback
from src.runtime.tensorflow.checkpoint import Checkpoints
from src.runtime.tensorflow.custom_loop import ModelCopy
from src.runtime.tensorflow.evaluation import Evaluation
from src.runtime.tensorflow.microbatches import accumulate

# (images [1, part, H, W, C], labels [1, part], is this rank past the time limit) -> (mean loss, correct
# answers of the global batch, is some rank past the time limit).
Step = Callable[[tf.Tensor, tf.Tensor, bool], tuple[float, float, bool]]


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this rank's copy of the model on the rank's part of every batch.

    Raises:
        ConfigError: when mpiexec and mpi4py belong to different MPIs, or the run can't go on from the
            configured checkpoint.
    """
    setup.configure(context)
    world = MPIWorld(context, recorder)
    variants = {"gradients": _synchronous, "epoch_average": _averaging, "none": _independent}
    copy, step, evaluate = variants[context.config.strategy["sync"]](context, recorder, world)
    # The configuration allows no checkpoints for variants whose ranks don't train one model.
    checkpoints = Checkpoints(context, recorder, copy.parts, world.barrier)
    first = checkpoints.resume()
    callback = TrainingCallback(context, recorder, evaluate, checkpoints)
    batches: Iterator[Any] = iter(feed.replica_batches(context, 1, 1, first=first))
    setup.keep(batches)
    callback.on_train_start()
    while callback.status is None:
        with recorder.waiting_for_input():
            images, labels = next(batches)
        loss, correct, late = step(images, labels, callback.late)
        callback.on_steps_end([loss], correct, late=late)
    complete_payload(recorder, first)
    world.leave()
    setup.finish(context, recorder, [copy.model], callback.status)


# The model, the function that takes a step, and that which evaluates: (mean loss, accuracy, seconds).
Variant = tuple[ModelCopy, Step, Callable[[], tuple[float, float, float]]]


def _synchronous(context: RankContext, recorder: Recorder, world: MPIWorld) -> Variant:
    """Make the variant whose ranks sum gradients, loss, correct answers and lateness at every step."""
    copy = _seeded_copy(context, world)
    sizes = [int(np.prod(variable.shape)) for variable in copy.variables]
    kind, parts = keras.config.floatx(), context.config.microbatches

    @tf.function
    def backward(images: tf.Tensor, labels: tf.Tensor, late: tf.Tensor) -> tf.Tensor:
        gradients, loss, correct = accumulate(copy.gradients, images[0], labels[0], parts)
        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]
        return tf.concat([*flat, tf.stack([loss, correct, tf.cast(late, kind)])], 0)

    @tf.function(input_signature=[tf.TensorSpec([sum(sizes)], kind)])
    def apply(summed: tf.Tensor) -> None:
        pairs = zip(tf.split(summed, sizes), copy.variables, strict=True)
        copy.apply([tf.reshape(part, variable.shape) for part, variable in pairs])

    def step(images: tf.Tensor, labels: tf.Tensor, late: bool) -> tuple[float, float, bool]:
        total = world.sum_for_training(backward(images, labels, tf.constant(late)).numpy())
        apply(total[:-3])
        loss, correct, late_count = total[-3:].tolist()
        return loss, correct, late_count > 0

    return copy, step, _shared_evaluation(context, world, copy)


def _independent(context: RankContext, recorder: Recorder, world: MPIWorld) -> Variant:
    """Make the variant whose ranks exchange nothing, each with the mean loss of its own part of a batch."""
    # The learning rate is the whole run's, whose steps are as many and whose batch is the global one.
    rate = LearningRate.of(context.config, context.arrays.train_samples)
    copy = _seeded_copy(_with_own_batch(context), world, rate)
    parts = context.config.microbatches

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        gradients, loss, correct = accumulate(copy.gradients, images[0], labels[0], parts)
        copy.apply(gradients)
        return tf.stack([loss, correct])

    def step(images: tf.Tensor, labels: tf.Tensor, late: bool) -> tuple[float, float, bool]:
        loss, correct = train_step(images, labels).numpy().tolist()
        # The correct answers in this rank's part stand for those in the whole batch.
        return loss, correct * world.size, late

    # Each rank scores the whole test set by its own model: ranks with different parameters can't divide it.
    return copy, step, Evaluation(context, tf.distribute.get_strategy(), copy.forward)


def _averaging(context: RankContext, recorder: Recorder, world: MPIWorld) -> Variant:
    """Make the variant whose ranks average parameters and buffers after each epoch's last step.

    Between averages a rank steps as in `_independent`, and the optimizer's momentum is never averaged. A rank
    that must end within an epoch, being late or diverged, averages at once. The other ranks average with it
    at the end of their epoch, and then end too.
    """
    copy, own_step, evaluate = _independent(context, recorder, world)
    averaged = [*copy.variables, *_floating(copy.buffers)]
    per_epoch = feed.steps_per_epoch(context)

    def step(images: tf.Tensor, labels: tf.Tensor, late: bool) -> tuple[float, float, bool]:
        loss, correct, late = own_step(images, labels, late)
        ends = late or not np.isfinite(loss)
        if ends or (recorder.steps + 1) % per_epoch == 0:
            total = world.sum_for_training(np.append(_flat(averaged), ends).astype(keras.config.floatx()))
            _assign(averaged, total[:-1] / world.size)
            late = total[-1] > 0
            # The average has diverged for all ranks if one rank's parameters have.
            loss = loss if np.isfinite(total).all() else np.nan
        return loss, correct, late

    return copy, step, evaluate


def _seeded_copy(context: RankContext, world: MPIWorld, rate: LearningRate | None = None) -> ModelCopy:
    """Build the seeded model, with the values of rank 0's variables on all ranks."""
    copy = ModelCopy(context, rate)
    _broadcast([*copy.variables, *_floating(copy.buffers)], world)
    return copy


def _with_own_batch(context: RankContext) -> RankContext:
    """Return the context of a rank whose part is its whole batch: its loss is then the part's mean."""
    config = dataclasses.replace(context.config, batch=context.config.worker_batch, scaling="strong")
    return dataclasses.replace(context, config=config)


def _shared_evaluation(
    context: RankContext, world: MPIWorld, copy: ModelCopy
) -> Callable[[], tuple[float, float, float]]:
    """Return a function that scores each test sample once, with the test set divided among the ranks.

    All ranks score with rank 0's buffers, since each rank has changed its buffers by its own samples.
    """
    arrays = context.arrays
    part = order.even_slice(arrays.test_samples, context.rank, world.size)
    own = arrays.test.part(part)
    rank_context = dataclasses.replace(context, arrays=dataclasses.replace(arrays, test=own))
    score = Evaluation(rank_context, tf.distribute.get_strategy(), copy.forward)

    def evaluate() -> tuple[float, float, float]:
        start = time.perf_counter()
        _broadcast(_floating(copy.buffers), world)
        loss, accuracy, _ = score()
        total = world.sum(np.array([loss, accuracy]) * len(own))
        loss, accuracy = (total / arrays.test_samples).tolist()
        return loss, accuracy, time.perf_counter() - start

    return evaluate


def _floating(variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    """Return the floating-point variables, which leaves out the states of random generators."""
    return [variable for variable in variables if tf.as_dtype(variable.dtype).is_floating]


def _broadcast(variables: Sequence[keras.Variable], world: MPIWorld) -> None:
    """Set the variables of all ranks to rank 0's values."""
    if variables:
        _assign(variables, world.broadcast(_flat(variables)))


def _flat(variables: Sequence[keras.Variable]) -> np.ndarray:
    return np.concatenate([variable.numpy().ravel() for variable in variables])


def _assign(variables: Sequence[keras.Variable], flat: np.ndarray) -> None:
    ends = np.cumsum([int(np.prod(variable.shape)) for variable in variables])
    for variable, values in zip(variables, np.split(flat, ends[:-1]), strict=True):
        variable.assign(values.reshape(variable.shape))

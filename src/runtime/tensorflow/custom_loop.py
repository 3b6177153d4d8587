"""Train by a custom `tf.function` loop: `strategy.run` takes a step, `strategy.reduce` sums its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.common.learning_rate import LearningRate
from src.runtime.tensorflow import feed, rounding, setup, update_rule
from src.runtime.tensorflow.callback import StepFollower, TrainingCallback
from src.runtime.tensorflow.checkpoint import Checkpoints, Part
from src.runtime.tensorflow.evaluation import Evaluation
from src.runtime.tensorflow.microbatches import accumulate


class TrainableModel(Protocol):
    """A model that the custom loop can train.

    Attributes:
        buffers: variables that training changes without a gradient, where each replica has a copy of them.
        step_bytes: bytes that one step hands from device to device.
        parts: the model, or its parts, each with its optimizer, for checkpoints.
    """

    @property
    def buffers(self) -> Sequence[Any]: ...
    @property
    def step_bytes(self) -> int: ...
    @property
    def parts(self) -> Sequence[Part]: ...

    def forward(self, images: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Return logits [samples, classes] of uint8 images [samples, height, width, channels]."""

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Compute the gradients of one micro-batch.

        Args:
            images: uint8 [samples, height, width, channels].
            labels: [samples].

        Returns:
            The gradients of all trained variables, the micro-batch's contribution to the global batch's mean
            loss [], and the number of correct answers [].
        """

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Take one optimizer step by the gradients of all trained variables."""


class ModelCopy:
    """A `TrainableModel` of which each replica has a whole copy, with the seed's weights."""

    def __init__(self, context: RankContext, rate: LearningRate | None = None) -> None:
        """Build the model, to be trained at `rate` or as configured; called within a strategy's scope."""
        self.model = setup.build(context)
        self.variables = self.model.trainable_variables
        self.buffers = self.model.non_trainable_variables
        self._context = context
        self._task = setup.make_task(context)
        self._optimizer = update_rule.make_optimizer(context, rate=rate)
        self._optimizer.build(self.variables)
        self.parts = [(self.model, self._optimizer)]
        replicas = tf.distribute.get_strategy().num_replicas_in_sync // context.world_size
        self.step_bytes = replicas * setup.gradient_bytes(self.model)
        xla = context.config.strategy["xla"]
        self._compute = tf.function(self._gradients, jit_compile=True) if xla else self._gradients

    def forward(self, images: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Return logits [samples, classes] of uint8 images [samples, height, width, channels]."""
        return self.model(setup.normalise(self._context, images), training=training)

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Return gradients of all trained variables, the contribution to the loss, correct answers."""
        return self._compute(images, labels)

    def _gradients(
        self, images: tf.Tensor, labels: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = self.forward(images, training=True)
            loss = setup.loss_contribution(self._context, self._task, labels, logits)
            total = setup.with_added(self._context, loss, self.model.losses)
        return tape.gradient(total, self.variables), loss, self._task.correct_answers(labels, logits)

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Take one optimizer step by the sum of the replicas' gradients."""
        self._optimizer.apply_gradients(zip(gradients, self.variables, strict=True))


def train_copies(context: RankContext, recorder: Recorder, strategy: tf.distribute.Strategy) -> None:
    """Train a copy of the model on every replica of `strategy`, and finish the record."""
    with strategy.scope():
        copy = ModelCopy(context)
    loop = CustomLoop(context, recorder, strategy, copy)
    status = loop.train()
    setup.finish(context, recorder, [copy.model], status)
    rounding.measure_gap(context, recorder, *copy.parts[0], loop.run)


def train(
    context: RankContext, recorder: Recorder, strategy: tf.distribute.Strategy, model: TrainableModel
) -> str:
    """Train `model` under `strategy`; the result, and what is raised, are those of `CustomLoop.train`."""
    return CustomLoop(context, recorder, strategy, model).train()


class CustomLoop:
    """A loop around one compiled function, which takes a model's steps under a strategy."""

    def __init__(
        self,
        context: RankContext,
        recorder: Recorder,
        strategy: tf.distribute.Strategy,
        model: TrainableModel,
    ) -> None:
        """Prepare to train `model`; the function is compiled when it is first called."""
        self._context = context
        self._recorder = recorder
        self._strategy = strategy
        self._model = model
        self._steps = make_steps(context, strategy, model)

    def train(self) -> str:
        """Train as configured; return how the training ended: `ok`, `time_limit` or `diverged`.

        Raises:
            ConfigError: when the run can't go on from the configured checkpoint.
        """
        context, recorder, model = self._context, self._recorder, self._model
        barrier = make_barrier(self._strategy) if context.world_size > 1 else None
        checkpoints = Checkpoints(context, recorder, model.parts, barrier)
        first = checkpoints.resume()
        evaluation = Evaluation(context, self._strategy, model.forward, model.buffers)
        callback = TrainingCallback(context, recorder, evaluation, checkpoints)
        if context.config.workers > 1:
            # Devices wait for each other inside the compiled step, where the waiting can't be measured.
            recorder.communication_seconds = None
        self.run(callback, first)
        if context.config.workers > 1:
            recorder.payload_bytes = model.step_bytes * recorder.trained_steps
        assert callback.status is not None
        return callback.status

    def run(self, follower: StepFollower, first: int = 0) -> None:
        """Take steps until `follower` has a status, after the `first` ones, which are done already."""
        context, strategy = self._context, self._strategy
        replicas = strategy.num_replicas_in_sync // context.world_size
        steps_at_once = context.config.strategy["steps_per_execution"]
        batches = iter(
            strategy.distribute_datasets_from_function(
                lambda _: feed.replica_batches(context, replicas, steps_at_once, first=first)
            )
        )
        setup.keep(strategy, batches)
        follower.on_train_start()
        while follower.status is None:
            with self._recorder.waiting_for_input():
                images, labels = next(batches)
            losses, correct, late = self._steps(images, labels, tf.constant(follower.late))
            follower.on_steps_end(losses.numpy().tolist(), float(correct), late=bool(late))
        # It is traced once, and once more for an epoch's last call if that has fewer steps.
        count = self._steps.experimental_get_tracing_count()
        assert count <= 2, f"the step was traced {count} times"


def make_barrier(strategy: tf.distribute.Strategy) -> Callable[[], object]:
    """Return a function that waits until all processes of the strategy have called it."""

    @tf.function
    def barrier() -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(lambda: tf.ones(())), axis=None)

    return lambda: barrier().numpy()


def make_steps(context: RankContext, strategy: tf.distribute.Strategy, model: TrainableModel) -> Any:
    """Return a compiled function that trains some steps on every replica.

    The function's arguments are a replica's uint8 images [steps, part, H, W, C], their labels [steps, part],
    and whether this process is past the time limit. The function returns the losses [steps], each a mean over
    the global batch, the number of correct answers in all steps, and whether some process is past the time
    limit, since all processes must end with the same step.
    """
    parts = context.config.microbatches
    steps_at_once = context.config.strategy["steps_per_execution"]

    def replica_step(images: tf.Tensor, labels: tf.Tensor, late: tf.Tensor) -> tf.Tensor:
        total, loss, correct = accumulate(model.gradients, images, labels, parts)
        model.apply(total)
        return tf.stack([loss, correct, tf.cast(late, loss.dtype)])

    def distributed_train_step(images: Any, labels: Any, late: tf.Tensor) -> tf.Tensor:
        # One reduction of three numbers, not three of one.
        return strategy.reduce("SUM", strategy.run(replica_step, args=(images, labels, late)), axis=None)

    def select_step(values: Any, step: int | tf.Tensor) -> Any:
        return strategy.run(lambda value: value[step], args=(values,))

    @tf.function
    def steps(images: Any, labels: Any, late: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        if steps_at_once == 1:
            # A loop costs a twentieth of a small step, even a loop of one pass.
            reduced = distributed_train_step(select_step(images, 0), select_step(labels, 0), late)
            loss, correct, late_count = tf.unstack(reduced)
            return loss[None], correct, late_count > 0
        count = tf.shape(strategy.experimental_local_results(labels)[0])[0]
        results = tf.TensorArray(keras.config.floatx(), count, element_shape=(3,))
        for step in tf.range(count):
            reduced = distributed_train_step(select_step(images, step), select_step(labels, step), late)
            results = results.write(step, reduced)
        losses, correct, late_counts = tf.unstack(results.stack(), axis=1)
        return losses, tf.reduce_sum(correct), tf.reduce_any(late_counts > 0)

    return steps

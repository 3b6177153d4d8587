"""A `tf.function` loop: a distributed step by `strategy.run`, its results by `strategy.reduce`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from src.measure.recorder import Recorder
from src.runtime.tensorflow import feed
from src.runtime.tensorflow import training as runtime
from src.runtime.tensorflow.checkpoint import Checkpoints, Part
from src.runtime.tensorflow.conductor import Conductor
from src.runtime.tensorflow.evaluation import Evaluation
from src.worker import Run


class Trained(Protocol):
    """A model that a loop can train."""

    # What training moves without a gradient, where replicas have copies of it.
    buffers: Sequence[Any]
    # What one step hands from device to device.
    step_bytes: int
    # What a checkpoint is made of.
    parts: Sequence[Part]

    def forward(self, images: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Logits [samples, classes] from uint8 images."""

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Gradients of `variables`, the share of the loss, correct answers."""

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """One optimizer step."""


class Copy:
    """A whole copy of the seeded model on each replica; applying sums gradients over the replicas."""

    def __init__(self, run: Run) -> None:
        self.model = runtime.build(run)
        self.variables = self.model.trainable_variables
        self.buffers = self.model.non_trainable_variables
        self._run = run
        self._optimizer = runtime.optimizer(run)
        self._optimizer.build(self.variables)
        self.parts = [(self.model, self._optimizer)]
        replicas = tf.distribute.get_strategy().num_replicas_in_sync // run.world_size
        self.step_bytes = replicas * runtime.gradient_bytes(self.model)
        if run.config.strategy["xla"]:
            self.gradients = tf.function(self.gradients, jit_compile=True)

    def forward(self, images: tf.Tensor, *, training: bool) -> tf.Tensor:
        return self.model(runtime.normalise(self._run, images), training=training)

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = self.forward(images, training=True)
            loss = runtime.share_of_loss(self._run, labels, logits)
        return tape.gradient(loss, self.variables), loss, runtime.hits(labels, logits)

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        self._optimizer.apply_gradients(zip(gradients, self.variables, strict=True))


def train_copies(run: Run, recorder: Recorder, strategy: tf.distribute.Strategy) -> None:
    """Trains a copy of the model on every replica of `strategy`."""
    with strategy.scope():
        copy = Copy(run)
    status = train(run, recorder, strategy, copy)
    runtime.finish(recorder, [copy.model], status)


def train(run: Run, recorder: Recorder, strategy: tf.distribute.Strategy, trained: Trained) -> str:
    """Feeds, steps and records until the training is over; how it ended."""
    steps = make_steps(run, strategy, trained)
    checkpoints = Checkpoints(run, recorder, trained.parts, meeting(strategy) if run.world_size > 1 else None)
    first = checkpoints.resume()
    evaluation = Evaluation(run, strategy, trained.forward, trained.buffers)
    conductor = Conductor(run, recorder, evaluation, checkpoints)
    replicas = strategy.num_replicas_in_sync // run.world_size
    if run.config.workers > 1:
        # Inside the compiled step: what a device waits for the others can't be told.
        recorder.communication_seconds = None
    together = run.config.strategy["steps_per_execution"]
    batches = iter(
        strategy.distribute_datasets_from_function(
            lambda _: feed.shards(run, replicas, together, first=first)
        )
    )
    runtime.keep(strategy, batches)
    conductor.begin()
    while conductor.status is None:
        with recorder.waiting_for_input():
            images, labels = next(batches)
        losses, correct, late = steps(images, labels, tf.constant(conductor.late))
        conductor.completed(losses.numpy().tolist(), float(correct), late=bool(late))
    if run.config.workers > 1:
        recorder.payload_bytes = trained.step_bytes * recorder.trained_steps
    # Once, and once more where an epoch ends on fewer steps.
    traced = steps.experimental_get_tracing_count()
    assert traced <= 2, f"the step was traced {traced} times"
    return conductor.status


def meeting(strategy: tf.distribute.Strategy) -> Callable[[], object]:
    """A function that returns once all processes of the strategy have called it."""

    @tf.function
    def meet() -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(lambda: tf.ones(())), axis=None)

    return lambda: meet().numpy()


def accumulate(
    trained: Trained, images: tf.Tensor, labels: tf.Tensor, parts: int
) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Gradients, the share of the loss and correct answers, summed over `parts` micro-batches."""
    total: list[tf.Tensor] = []
    loss = correct = tf.zeros((), keras.config.floatx())
    for inputs, expected in zip(tf.split(images, parts), tf.split(labels, parts), strict=True):
        found, part, right = trained.gradients(inputs, expected)
        total = [a + b for a, b in zip(total, found, strict=True)] if total else found
        loss, correct = loss + part, correct + right
    return total, loss, correct


def make_steps(run: Run, strategy: tf.distribute.Strategy, trained: Trained) -> Any:
    """A function that trains one step for each [share, H, W, C] of what a replica is given.

    It returns the global batch's mean loss of each step, all correct answers, and whether some process
    is late: all of them must end with the same step.
    """
    parts = run.config.microbatches
    together = run.config.strategy["steps_per_execution"]

    def replica(images: tf.Tensor, labels: tf.Tensor, late: tf.Tensor) -> tf.Tensor:
        total, loss, correct = accumulate(trained, images, labels, parts)
        trained.apply(total)
        return tf.stack([loss, correct, tf.cast(late, loss.dtype)])

    def distributed_train_step(images: Any, labels: Any, late: tf.Tensor) -> tf.Tensor:
        # One reduction of three numbers, not three of one.
        return strategy.reduce("SUM", strategy.run(replica, args=(images, labels, late)), axis=None)

    def of_step(values: Any, step: int | tf.Tensor) -> Any:
        return strategy.run(lambda value: value[step], args=(values,))

    @tf.function
    def steps(images: Any, labels: Any, late: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        if together == 1:
            # A loop costs a twentieth of a small step, even a loop of one pass.
            reduced = distributed_train_step(of_step(images, 0), of_step(labels, 0), late)
            loss, correct, lates = tf.unstack(reduced)
            return loss[None], correct, lates > 0
        count = tf.shape(strategy.experimental_local_results(labels)[0])[0]
        found = tf.TensorArray(keras.config.floatx(), count, element_shape=(3,))
        for step in tf.range(count):
            reduced = distributed_train_step(of_step(images, step), of_step(labels, step), late)
            found = found.write(step, reduced)
        losses, correct, lates = tf.unstack(found.stack(), axis=1)
        return losses, tf.reduce_sum(correct), tf.reduce_any(lates > 0)

    return steps

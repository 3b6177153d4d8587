"""Train by Keras's own `fit`, with a metric that keeps the losses and a callback that records the steps."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import feed, rounding, setup, update_rule
from src.runtime.tensorflow.callback import StepFollower, TrainingCallback
from src.runtime.tensorflow.checkpoint import Checkpoints
from src.runtime.tensorflow.evaluation import Evaluation


class StepMetric(keras.metrics.Metric):
    """A Keras metric that keeps the losses of the last steps, in one variable.

    The variable `totals` [2 + steps_at_once] holds the epoch's steps and correct answers so far, and the loss
    of each of the last `steps_at_once` steps. Summed over replicas, losses are means over the global batch.
    """

    def __init__(self, context: RankContext, steps_at_once: int) -> None:
        """Make the variable, for `steps_at_once` steps between two calls of a callback."""
        super().__init__(name="steps")
        self._task = setup.make_task(context)
        self._batch = context.config.global_batch
        self._steps_at_once = steps_at_once
        self.totals = self.add_variable((2 + steps_at_once,), "zeros", name="totals")

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: Any = None) -> None:
        """Add one step of one replica: labels `y_true` [part] and logits `y_pred` [part, classes]."""
        labels = tf.cast(y_true, tf.int64)
        loss = tf.reduce_sum(self._task.per_sample_loss(labels, y_pred)) / self._batch
        totals = tf.convert_to_tensor(self.totals)
        place = 2 + tf.cast(totals[0], tf.int32) % self._steps_at_once
        is_place = tf.one_hot(place, 2 + self._steps_at_once, on_value=True, off_value=False)
        counts = tf.stack([1.0, self._task.correct_answers(labels, y_pred)])
        # A choice, not a product: a loss that is no number would make none of the counts.
        kept = tf.where(is_place, loss, totals)
        self.totals.assign(kept + tf.pad(counts, [[0, self._steps_at_once]]))

    def result(self) -> tf.Tensor:
        """Return the number of the epoch's steps so far, which Keras would print."""
        return self.totals[0]


class FitCallback(keras.callbacks.Callback):
    """A Keras callback that reports completed steps to a `StepFollower`, and stops `fit` at its end."""

    def __init__(self, follower: StepFollower, steps: StepMetric, strategy: tf.distribute.Strategy) -> None:
        """Report the steps that the metric `steps` counts to `follower`."""
        super().__init__()
        self._follower = follower
        self._steps = steps
        self._strategy = strategy
        self._seen, self._correct = 0, 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count the epoch's steps from 0."""
        # Keras resets its metrics before each epoch.
        self._seen, self._correct = 0, 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report the steps that were completed since the last call of this method."""
        # Read as a whole, the variable would be added up by operations that take a tenth of a small step.
        parts = self._strategy.experimental_local_results(self._steps.totals.value)
        summed_count, correct, *losses = sum(part.numpy() for part in parts).tolist()
        count = round(summed_count / len(parts))
        places = [number % len(losses) for number in range(self._seen, count)]
        completed = [losses[place] for place in places]
        self._follower.on_steps_end(completed, correct - self._correct, late=self._follower.late)
        self._seen, self._correct = count, correct
        if self._follower.status is not None:
            self.model.stop_training = True


class TaskLoss(keras.losses.Loss):
    """The task's loss, whose mean over a replica's samples Keras takes."""

    def __init__(self, context: RankContext) -> None:
        """Make the configured task."""
        super().__init__()
        self._task = setup.make_task(context)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the loss [part] of labels `y_true` [part] and logits `y_pred` [part, classes]."""
        # Keras has made floating-point numbers of the labels.
        return self._task.per_sample_loss(tf.cast(y_true, tf.int64), y_pred)


def train(context: RankContext, recorder: Recorder, strategy: tf.distribute.Strategy) -> None:
    """Train a copy of the model on every replica of `strategy` by `keras.Model.fit`; finish the record.

    Raises:
        ConfigError: when the run can't go on from the configured checkpoint.
    """
    options = context.config.strategy
    steps_at_once = options["steps_per_execution"]
    with strategy.scope():
        model = setup.build(context)
        steps = StepMetric(context, steps_at_once)
        model.compile(
            optimizer=update_rule.make_optimizer(context),
            loss=TaskLoss(context),
            metrics=[steps],
            steps_per_execution=steps_at_once,
            jit_compile=options["xla"],
        )

        model.optimizer.build(model.trainable_variables)

    def forward(images: tf.Tensor, *, training: bool) -> tf.Tensor:
        return model(setup.normalise(context, images), training=training)

    checkpoints = Checkpoints(context, recorder, [(model, model.optimizer)])
    done = checkpoints.resume()
    evaluation = Evaluation(context, strategy, forward, model.non_trainable_variables)
    callback = TrainingCallback(context, recorder, evaluation, checkpoints)
    # Keras takes its batches inside the compiled step, where the waiting for them can't be measured.
    recorder.input_seconds = None
    if context.config.workers > 1:
        recorder.communication_seconds = None

    def run(follower: StepFollower, done: int = 0) -> None:
        fit_callback = FitCallback(follower, steps, strategy)
        first, within = divmod(done, feed.steps_per_epoch(context))
        follower.on_train_start()
        for epoch in range(first, context.config.epochs):
            if follower.status is not None:
                break
            # Each epoch has its own order.
            start = within if epoch == first else 0
            batches = feed.batches(context, epoch, first=start).map(
                lambda images, labels: (setup.normalise(context, images), labels)
            )
            model.fit(batches, callbacks=[fit_callback], shuffle=False, verbose=0)

    run(callback, done)
    assert callback.status is not None
    if context.config.workers > 1:
        step_bytes = strategy.num_replicas_in_sync * setup.gradient_bytes(model)
        recorder.payload_bytes = step_bytes * recorder.trained_steps
    setup.finish(context, recorder, [model], callback.status)
    rounding.measure_gap(context, recorder, model, model.optimizer, run)

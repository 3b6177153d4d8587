"""Keras's own `fit`, watched by a metric and a callback: every step's loss, evaluation, the time limit."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from src.measure.recorder import Recorder
from src.runtime.tensorflow import feed
from src.runtime.tensorflow import training as runtime
from src.runtime.tensorflow.checkpoint import Checkpoints
from src.runtime.tensorflow.conductor import Conductor
from src.runtime.tensorflow.evaluation import Evaluation
from src.worker import Run


class Steps(keras.metrics.Metric):
    """The epoch's steps and correct answers so far, and the last `together` steps' losses, in one variable.

    Over replicas they add up: losses are the global batch's means.
    """

    def __init__(self, run: Run, together: int) -> None:
        super().__init__(name="steps")
        self._batch = run.config.global_batch
        self._together = together
        self.found = self.add_variable((2 + together,), "zeros", name="found")

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: Any = None) -> None:
        """One step of one replica."""
        loss = tf.reduce_sum(runtime.per_sample_loss(tf.cast(y_true, tf.int64), y_pred)) / self._batch
        found = tf.convert_to_tensor(self.found)
        place = 2 + tf.cast(found[0], tf.int32) % self._together
        here = tf.one_hot(place, 2 + self._together, dtype=loss.dtype)
        more = tf.stack([1.0, runtime.hits(tf.cast(y_true, tf.int64), y_pred)])
        self.found.assign(found * (1 - here) + loss * here + tf.pad(more, [[0, self._together]]))

    def result(self) -> tf.Tensor:
        """What Keras prints, were it asked to."""
        return self.found[0]


class Watch(keras.callbacks.Callback):
    """Tells the conductor of completed steps, and stops `fit` when it says so."""

    def __init__(self, conductor: Conductor, steps: Steps, strategy: tf.distribute.Strategy) -> None:
        super().__init__()
        self._conductor = conductor
        self._steps = steps
        self._strategy = strategy
        self._seen, self._correct = 0, 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # Keras resets its metrics before each epoch.
        self._seen, self._correct = 0, 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Read as a whole, the variable would be added up by operations that take a tenth of a small step.
        parts = self._strategy.experimental_local_results(self._steps.found.value)
        counts, correct, *values = sum(part.numpy() for part in parts).tolist()
        count = round(counts / len(parts))
        places = [number % len(values) for number in range(self._seen, count)]
        completed = [values[place] for place in places]
        self._conductor.completed(completed, correct - self._correct, late=self._conductor.late)
        self._seen, self._correct = count, correct
        if self._conductor.status is not None:
            self.model.stop_training = True


def train(run: Run, recorder: Recorder, strategy: tf.distribute.Strategy) -> None:
    """Trains under `keras.Model.fit`."""
    options = run.config.strategy
    together = options["steps_per_execution"]
    with strategy.scope():
        model = runtime.build(run)
        steps = Steps(run, together)
        model.compile(
            optimizer=runtime.optimizer(run),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[steps],
            steps_per_execution=together,
            jit_compile=options["xla"],
        )

        model.optimizer.build(model.trainable_variables)

    def forward(images: tf.Tensor, *, training: bool) -> tf.Tensor:
        return model(runtime.normalise(run, images), training=training)

    checkpoints = Checkpoints(run, recorder, [(model, model.optimizer)])
    first, within = divmod(checkpoints.resume(), feed.steps_per_epoch(run))
    evaluation = Evaluation(run, strategy, forward, model.non_trainable_variables)
    conductor = Conductor(run, recorder, evaluation, checkpoints)
    # Keras takes its batches inside the compiled step: what it waits for them can't be told.
    recorder.input_seconds = None
    if run.config.workers > 1:
        recorder.communication_seconds = None
    watch = Watch(conductor, steps, strategy)
    conductor.begin()
    for epoch in range(first, run.config.epochs):
        # Each epoch has its own order.
        start = within if epoch == first else 0
        batches = feed.batches(run, epoch, first=start).map(
            lambda images, labels: (runtime.normalise(run, images), labels)
        )
        model.fit(batches, callbacks=[watch], shuffle=False, verbose=0)
        if conductor.status is not None:
            break
    assert conductor.status is not None
    if run.config.workers > 1:
        each = strategy.num_replicas_in_sync * runtime.gradient_bytes(model)
        recorder.payload_bytes = each * recorder.trained_steps
    runtime.finish(recorder, [model], conductor.status)

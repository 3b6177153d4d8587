"""One device under TensorFlow: a Keras model in a `tf.function` step."""

from __future__ import annotations

import math

import tensorflow as tf

from src.data import order
from src.measure import memory
from src.measure.recorder import Recorder
from src.runtime.tensorflow import training as runtime
from src.worker import Run


def train(run: Run, recorder: Recorder) -> None:
    """Trains on the rank's one device."""
    runtime.configure(run)
    memory.start()
    model = runtime.build(run)
    optimizer = runtime.optimizer(run)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=False)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(runtime.normalise(run, images), training=True)
            loss = tf.reduce_mean(runtime.per_sample_loss(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        hits = tf.equal(tf.argmax(logits, 1), labels)
        return loss, tf.reduce_sum(tf.cast(hits, tf.int64))

    status = _loop(run, recorder, model, step)
    runtime.finish(recorder, model, status)


def _loop(
    run: Run, recorder: Recorder, model: tf.keras.Model, step: tf.types.experimental.PolymorphicFunction
) -> str:
    config = run.config
    steps = order.steps_per_epoch(run.arrays.train_samples, config.global_batch)
    recorder.facts["steps_per_epoch"] = steps
    loss_sum, correct, trained = 0.0, 0, 0

    def evaluate() -> None:
        nonlocal loss_sum, correct, trained
        if recorder.evaluated_at == recorder.steps:
            return
        with recorder.off_clock():
            loss, accuracy, seconds = runtime.evaluate(run, model)
            recorder.facts["validation_samples_per_second"] = run.arrays.test_samples / seconds
            recorder.evaluated(
                epoch=recorder.steps / steps,
                train_loss=loss_sum / trained if trained else None,
                train_accuracy=correct / trained if trained else None,
                loss=loss,
                accuracy=accuracy,
                seconds=seconds,
            )
            loss_sum, correct, trained = 0.0, 0, 0

    recorder.begin()
    for epoch in range(config.epochs):
        for images, labels in runtime.batches(run, recorder, epoch):
            loss, hits = (float(value) for value in step(tf.constant(images), tf.constant(labels)))
            recorder.step(loss, len(labels), epoch=epoch + 1)
            loss_sum, correct, trained = (
                loss_sum + loss * len(labels),
                correct + int(hits),
                trained + len(labels),
            )
            if not math.isfinite(loss):
                evaluate()
                return "diverged"
            out_of_time = recorder.train_seconds > config.max_minutes * 60
            if out_of_time and recorder.steps < steps * config.epochs:
                evaluate()
                return "time_limit"
            if config.evaluate_every and recorder.steps % config.evaluate_every == 0:
                evaluate()
        evaluate()
    return "ok"

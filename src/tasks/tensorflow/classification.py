"""Classify under TensorFlow: one class a sample, by cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf


class Classification:
    """One of several classes for each sample; the contract of every task under TensorFlow.

    A task gives a loss for each sample, and the number of correct answers, from which `metrics` makes the
    metrics of the task's YAML file.
    """

    sums = ("correct",)

    def __init__(self, *, classes: int, shape: tuple[int, ...], options: Mapping[str, Any]) -> None:
        """Take what every task is given; nothing of it is needed here."""

    def per_sample_loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy [batch] of integer labels [batch] and logits [batch, classes]."""
        logits = tf.cast(logits, keras.config.floatx())
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    def correct_answers(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Count the samples whose label [samples] is the class of the largest logit [samples, classes]."""
        return tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), labels), keras.config.floatx()))

    def score(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Return the summed loss of samples, and how many of their answers are correct [2]."""
        loss = tf.reduce_sum(self.per_sample_loss(labels, logits))
        return tf.stack([loss, self.correct_answers(labels, logits)])

    def metrics(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return the accuracy, the share of correct answers."""
        return {"accuracy": sums["correct"] / samples}

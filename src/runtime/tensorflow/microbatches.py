"""Accumulate gradients over micro-batches."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

# (images, labels) of a micro-batch -> gradients, contribution to the loss, correct answers.
Gradients = Callable[[tf.Tensor, tf.Tensor], tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]]


def accumulate(
    gradients: Gradients, images: tf.Tensor, labels: tf.Tensor, parts: int
) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Sum gradients, the contribution to the loss and correct answers over `parts` micro-batches.

    Args:
        gradients: computes the gradients of one micro-batch.
        images: a worker's part of a batch, uint8 [samples, height, width, channels].
        labels: labels of the images [samples].
        parts: number of micro-batches, which divides `samples`.
    """
    total: list[tf.Tensor] = []
    loss = correct = tf.zeros((), keras.config.floatx())
    for inputs, expected in zip(tf.split(images, parts), tf.split(labels, parts), strict=True):
        part, part_loss, part_correct = gradients(inputs, expected)
        total = [a + b for a, b in zip(total, part, strict=True)] if total else part
        loss, correct = loss + part_loss, correct + part_correct
    return total, loss, correct

"""A Keras model whose variables stand on parameter servers, and what a worker does with it in one step.

A step is a *fetch* (all variables to the worker), a *compute* (loss and gradients, on the fetched copies
alone) and a *push* (gradients to the servers, which apply the optimizer's rule where each variable, or
each shard of one, stands). They overlap: a layer computes once its variables are there, and a gradient
leaves once it is known. So *compute* lasts from the first variable's arrival to the last gradient, and of
fetch and push the times are those in which nothing computes. A gradient is that of the worker's share of
the global batch's mean loss: under plain SGD the pushes of one global batch add up to what a synchronous
strategy applies at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from src.runtime.tensorflow import training as runtime
from src.runtime.tensorflow.sharding import shards, split
from src.worker import Run

# A worker's own environment: no operation tells on which of the tasks it runs.
ENVIRONMENT = "/proc/self/environ"


class Served:
    """The seeded model, placed by a `ParameterServerStrategy`."""

    def __init__(self, run: Run, strategy: tf.distribute.Strategy) -> None:
        self._run = run
        with strategy.scope():
            self.model = runtime.build(run)
            self._trained = self.model.trainable_variables
            self._moved = self.model.non_trainable_variables
            self._optimizer = runtime.optimizer(run)
            # `tape.gradient` and Keras's optimizers don't take a sharded variable; its shards are variables.
            self._optimizer.build([part for variable in self._trained for part in shards(variable)])
            self._version = tf.Variable(0, dtype=tf.int64, trainable=False, name="version")
        self.parts = [(self.model, self._optimizer)]
        # What is traced in the scope has no replica that could apply gradients.
        everything = [*self._trained, *self._moved]
        # All of them, once.
        self.bytes = int(sum(np.prod(v.shape) * tf.as_dtype(v.dtype).size for v in everything))
        self._apply = tf.function(self._apply)
        shape = run.arrays.shape
        counts = {1, run.config.strategy["steps_per_execution"]}
        share = run.config.worker_batch
        self.steps = {
            count: tf.function(
                self._steps,
                input_signature=[
                    tf.TensorSpec((count, share, *shape), tf.uint8),
                    tf.TensorSpec((count, share), tf.int64),
                ],
            ).get_concrete_function()
            for count in counts
        }
        self.score = tf.function(
            self._score,
            input_signature=[tf.TensorSpec((None, *shape), tf.uint8), tf.TensorSpec((None,), tf.int64)],
        ).get_concrete_function()

    def placement(self) -> dict[str, list[dict[str, Any]]]:
        """Where each variable stands: server, first row and number of rows of each of its shards."""
        found: dict[str, list[dict[str, Any]]] = {}
        for variable in self._trained:
            row = 0
            for part in shards(variable):
                rows = int(part.shape[0]) if part.shape.rank else 1
                server = tf.DeviceSpec.from_string(part.device).task
                found.setdefault(variable.path, []).append({"server": server, "row": row, "rows": rows})
                row += rows
        return found

    def _steps(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Figures [count, 8] of so many steps by one worker, on images [count, share, H, W, C]."""
        rank, began = _own_rank(labels), tf.timestamp()
        found: list[tf.Tensor] = []
        after: list[tf.Tensor] = []
        for given, expected in zip(tf.unstack(images), tf.unstack(labels), strict=True):
            # What follows what, servers see to among themselves: it costs the worker no message.
            with tf.control_dependencies(after):
                before = self._version.read_value()
            figures, version = self._step(given, expected, before, began)
            began, after = figures[-1], [version]
            found.append(tf.stack([tf.cast(figure, tf.float64) for figure in (rank, *figures)]))
        return tf.stack(found)

    def _step(
        self, images: tf.Tensor, labels: tf.Tensor, before: tf.Tensor, began: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
        with tf.control_dependencies([before]):
            weights, buffers = self._fetch()
        with tf.control_dependencies([images, labels, weights[0]]):
            fetched = tf.timestamp()
        with tf.control_dependencies([fetched]):
            images = tf.identity(images)
        gradients, buffers, loss, correct = self._compute(weights, buffers, images, labels)
        with tf.control_dependencies([*gradients, *buffers]):
            computed = tf.timestamp()
        after = self._apply(gradients, buffers)
        with tf.control_dependencies([after, computed]):
            pushed = tf.timestamp()
        # A worker's own mean, as the others report it.
        loss *= self._run.config.workers
        return (loss, correct, after - 1 - before, began, fetched, computed, pushed), after

    def _fetch(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        return [tf.convert_to_tensor(v.value) for v in self._trained], [
            tf.convert_to_tensor(v.value) for v in self._moved
        ]

    def _compute(
        self, weights: list[tf.Tensor], buffers: list[tf.Tensor], images: tf.Tensor, labels: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Gradients of the share of the global batch's loss, moved buffers, that share, correct answers."""
        total: list[tf.Tensor] = []
        loss = correct = tf.zeros((), keras.config.floatx())
        parts = self._run.config.microbatches
        for inputs, expected in zip(tf.split(images, parts), tf.split(labels, parts), strict=True):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                logits, buffers = self.model.stateless_call(
                    weights, buffers, runtime.normalise(self._run, inputs), training=True
                )
                part = runtime.share_of_loss(self._run, expected, logits)
            found = tape.gradient(part, weights)
            total = [a + b for a, b in zip(total, found, strict=True)] if total else found
            loss, correct = loss + part, correct + runtime.hits(expected, logits)
        return total, buffers, loss, correct

    def _apply(self, gradients: Sequence[tf.Tensor], buffers: Sequence[tf.Tensor]) -> tf.Tensor:
        pushed = [
            (piece, part)
            for gradient, variable in zip(gradients, self._trained, strict=True)
            for piece, part in zip(split(gradient, variable), shards(variable), strict=True)
        ]
        self._optimizer.apply_gradients(pushed)
        for variable, value in zip(self._moved, buffers, strict=True):
            variable.assign(value)
        # What a function does to variables has no outputs that could be waited for.
        effects = [op for op in tf.compat.v1.get_default_graph().get_operations() if not op.outputs]
        with tf.control_dependencies(effects):
            return self._version.assign_add(1, read_value=True)

    def _score(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = self.model(runtime.normalise(self._run, images), training=False)
        return tf.stack(
            [tf.reduce_sum(runtime.per_sample_loss(labels, logits)), runtime.hits(labels, logits)]
        )


def _own_rank(labels: tf.Tensor) -> tf.Tensor:
    """RANK of the process that runs this operation."""
    # Not a constant, that nobody may evaluate it elsewhere; labels aren't negative.
    start = tf.minimum(tf.cast(labels[0, 0], tf.int32), 0)
    text = tf.io.read_file(tf.strings.substr(ENVIRONMENT, start, len(ENVIRONMENT)))
    return tf.strings.to_number(
        tf.strings.regex_replace(text, r"(?s)(^|.*\x00)RANK=([0-9]+)(\x00.*|$)", r"\2")
    )

"""Place a Keras model's variables on parameter servers, and define what a worker does in one step.

A step is a *fetch* (all variables to the worker), a *compute* (loss and gradients, on the fetched copies
alone) and a *push* (gradients to the servers, which apply the optimizer's rule where each variable, or
each shard of one, stands). The three overlap: a layer computes once its variables have arrived, and a
gradient leaves once it is computed. So *compute* is measured from the first variable's arrival to the last
gradient, and the measured times of fetch and push are those in which nothing computes. A gradient is that of
the worker's contribution to the global batch's mean loss: under plain SGD the pushes of one global batch add
up to what a synchronous strategy applies at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from src.runtime.common import update_terms
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import setup, update_rule
from src.runtime.tensorflow.microbatches import accumulate
from src.runtime.tensorflow.variable_shards import shards_of, split_value

# TensorFlow has no operation that returns the task on which it runs; this file holds the process's name.
PROCESS_NAME = "/proc/self/comm"


class ServerModel:
    """The seeded model, whose variables a `ParameterServerStrategy` has placed on servers.

    Attributes:
        model: the Keras model.
        parts: the model with its optimizer, for checkpoints.
        bytes: bytes of all variables, those that aren't trained included.
        steps: by number of steps, a function that trains so many steps in a worker, on uint8 images [steps,
            part, H, W, C], labels [steps, part], and the number of global batches before the first one's,
            which decides the learning rate. It returns one row of 8 figures for each step: the
            worker's rank, mean loss, correct answers, staleness, and the times at which the step began, had
            fetched, had computed and had pushed.
        score: a function that returns the summed loss and the correct answers [2] of uint8 images [samples,
            H, W, C] and labels [samples].
    """

    def __init__(self, context: RankContext, strategy: tf.distribute.Strategy) -> None:
        self._context = context
        self._task = setup.make_task(context)
        self._terms = update_terms.of_workers(context.config.optimizer)
        # Global batches before that of the gradient which is being applied; set while an update is traced.
        self._done: tf.Tensor
        with strategy.scope():
            self.model = setup.build(context)
            self._trained = self.model.trainable_variables
            self._buffers = self.model.non_trainable_variables
            self._optimizer = update_rule.make_optimizer(context, step=lambda: self._done, served=True)
            # `tape.gradient` and Keras's optimizers don't take a sharded variable; its shards are variables.
            self._optimizer.build([part for variable in self._trained for part in shards_of(variable)])
            self._version = tf.Variable(0, dtype=tf.int64, trainable=False, name="version")
        self.parts = [(self.model, self._optimizer)]
        variables = [*self._trained, *self._buffers]
        self.bytes = int(sum(np.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables))
        # Functions are traced outside the strategy's scope, in which no replica could apply gradients.
        self._apply_compiled = tf.function(self._apply)
        shape = context.arrays.shape
        counts = {1, context.config.strategy["steps_per_execution"]}
        samples = context.config.worker_batch
        self.steps = {
            count: tf.function(
                self._steps,
                input_signature=[
                    tf.TensorSpec((count, samples, *shape), tf.uint8),
                    tf.TensorSpec((count, samples), tf.int64),
                    tf.TensorSpec((), tf.int64),
                ],
            ).get_concrete_function()
            for count in counts
        }
        self.score = tf.function(
            self._score,
            input_signature=[tf.TensorSpec((None, *shape), tf.uint8), tf.TensorSpec((None,), tf.int64)],
        ).get_concrete_function()

    def placement(self) -> dict[str, list[dict[str, Any]]]:
        """Return the shards of each variable, each with its server, first row and number of rows."""
        placement: dict[str, list[dict[str, Any]]] = {}
        for variable in self._trained:
            row = 0
            for part in shards_of(variable):
                rows = int(part.shape[0]) if part.shape.rank else 1
                server = tf.DeviceSpec.from_string(part.device).task
                placement.setdefault(variable.path, []).append({"server": server, "row": row, "rows": rows})
                row += rows
        return placement

    def _steps(self, images: tf.Tensor, labels: tf.Tensor, done: tf.Tensor) -> tf.Tensor:
        """Train `count` steps in one worker, on images [count, part, H, W, C] and labels [count, part].

        The first one is on a part of the global batch that follows `done` others. Return the figures of the
        steps [count, 8].
        """
        rank, began = _own_rank(labels), tf.timestamp()
        rows: list[tf.Tensor] = []
        after: list[tf.Tensor] = []
        pairs = zip(tf.unstack(images), tf.unstack(labels), strict=True)
        for number, (inputs, expected) in enumerate(pairs):
            # The servers keep the order of the steps among themselves, without a message to the worker.
            with tf.control_dependencies(after):
                before = self._version.read_value()
            figures, version = self._step(inputs, expected, before, began, done + number)
            began, after = figures[-1], [version]
            rows.append(tf.stack([tf.cast(figure, tf.float64) for figure in (rank, *figures)]))
        return tf.stack(rows)

    def _step(
        self, images: tf.Tensor, labels: tf.Tensor, before: tf.Tensor, began: tf.Tensor, done: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
        """Train one step that began at the time `began`, after `before` updates and `done` global batches.

        Return the figures of the step but the rank, and the number of updates after the push.
        """
        with tf.control_dependencies([before]):
            weights, buffers = self._fetch()
        with tf.control_dependencies([images, labels, weights[0]]):
            fetched = tf.timestamp()
        with tf.control_dependencies([fetched]):
            images = tf.identity(images)
        gradients, buffers, loss, correct = self._compute(weights, buffers, images, labels)
        with tf.control_dependencies([*gradients, *buffers]):
            computed = tf.timestamp()
        after = self._apply_compiled(gradients, buffers, done)
        with tf.control_dependencies([after, computed]):
            pushed = tf.timestamp()
        # The worker's contribution to the global batch's mean becomes the mean over its own part.
        loss *= self._context.config.workers
        return (loss, correct, after - 1 - before, began, fetched, computed, pushed), after

    def _fetch(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        return [tf.convert_to_tensor(v.value) for v in self._trained], [
            tf.convert_to_tensor(v.value) for v in self._buffers
        ]

    def _compute(
        self, weights: list[tf.Tensor], buffers: list[tf.Tensor], images: tf.Tensor, labels: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Return gradients, changed buffers, the contribution to the loss, and the correct answers."""

        def gradients(inputs: tf.Tensor, expected: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
            nonlocal buffers
            with tf.GradientTape() as tape:
                tape.watch(weights)
                logits, buffers, added = self.model.stateless_call(
                    weights,
                    buffers,
                    setup.normalise(self._context, inputs),
                    training=True,
                    return_losses=True,
                )
                loss = setup.loss_contribution(self._context, self._task, expected, logits)
                whole = setup.with_added(self._context, loss, added)
            return tape.gradient(whole, weights), loss, self._task.correct_answers(expected, logits)

        total, loss, correct = accumulate(gradients, images, labels, self._context.config.microbatches)
        share = 1 / self._context.config.workers
        if self._terms.clip_norm is not None:
            squares = update_rule.squared_norm(total) / share**2
            total = update_rule.clip(total, self._terms.clip_norm, squares)
        if self._terms.decay:
            total = [a + share * self._terms.decay * b for a, b in zip(total, weights, strict=True)]
        return total, buffers, loss, correct

    def _apply(
        self, gradients: Sequence[tf.Tensor], buffers: Sequence[tf.Tensor], done: tf.Tensor
    ) -> tf.Tensor:
        self._done = done
        pushed = [
            (piece, part)
            for gradient, variable in zip(gradients, self._trained, strict=True)
            for piece, part in zip(split_value(gradient, variable), shards_of(variable), strict=True)
        ]
        self._optimizer.apply_gradients(pushed)
        for variable, value in zip(self._buffers, buffers, strict=True):
            variable.assign(value)
        # Assignments to variables are operations without outputs: the update is done when all of them are.
        effects = [op for op in tf.compat.v1.get_default_graph().get_operations() if not op.outputs]
        with tf.control_dependencies(effects):
            return self._version.assign_add(1, read_value=True)

    def _score(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = self.model(setup.normalise(self._context, images), training=False)
        return self._task.score(labels, logits)


def _own_rank(labels: tf.Tensor) -> tf.Tensor:
    """Read the rank of the worker that runs this operation, from the name of its process (`rank-0`)."""
    # The file's name depends on the labels, since TensorFlow may evaluate an operation on constants in
    # another process. Labels aren't negative, so the position is always 0.
    start = tf.minimum(tf.cast(labels[0, 0], tf.int32), 0)
    name = tf.io.read_file(tf.strings.substr(PROCESS_NAME, start, len(PROCESS_NAME)))
    return tf.strings.to_number(tf.strings.regex_replace(name, r"[^0-9]", ""))

"""Model split under TensorFlow: layers over the devices of one process, one micro-batch at a time.

Paper 1 calls this ModelParallelStrategy; TensorFlow has no such class. Each stage's variables and operations
are placed by `tf.device`. The backward pass is a vector-Jacobian product for each stage, from the last stage
to the first. One gradient tape over all stages would choose the devices of its operations itself.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from src.measure.recorder import Recorder
from src.partition import plan as planning
from src.partition import plan_table
from src.partition.keras import cost
from src.partition.keras.graph import KerasGraph, operations
from src.partition.plan import Plan
from src.run import files
from src.run.tables import write_text
from src.run.variables import RESUME
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import custom_loop, setup, update_rule


def train(context: RankContext, recorder: Recorder) -> None:
    """Cut the seeded model, place its stages on this process's devices, and train them.

    Raises:
        ConfigError: when the model can't be cut as the configuration asks.
    """
    devices = setup.configure(context)
    model = SplitModel(context, devices)
    recorder.note(plan_table.show(model.plan))
    status = custom_loop.train(context, recorder, tf.distribute.get_strategy(), model)
    setup.finish(context, recorder, model.stages, status)


class SplitModel:
    """A `custom_loop.TrainableModel` of stages, each on a device of its own.

    Attributes:
        plan: the cut.
        stages: the stages, in order.
    """

    def __init__(self, context: RankContext, devices: Sequence[str]) -> None:
        """Build and cut the model, and place its stages on `devices`."""
        self.buffers = ()
        self._context = context
        self._task = setup.make_task(context)
        self._devices = devices
        graph = operations(setup.build(context))
        self.plan = _plan(context, graph, devices)
        ends = [0, *self.plan.boundaries, len(graph.nodes)]
        self.stages, self._optimizers = [], []
        for device, (start, stop) in zip(devices, itertools.pairwise(ends), strict=True):
            with tf.device(device):
                stage = graph.stage(start, stop)
                # The gradient of all stages is clipped before each has its own part of it.
                optimizer = update_rule.make_optimizer(context, clips=False)
                optimizer.build(stage.trainable_variables)
            self.stages.append(stage)
            self._optimizers.append(optimizer)
        self.parts = list(zip(self.stages, self._optimizers, strict=True))
        # Activations cross a boundary in the forward pass, and their gradients in the backward pass.
        crossing = sum(stage.sent_bytes for stage in self.plan.stages)
        self.step_bytes = 2 * crossing * context.config.microbatches

    def forward(self, images: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Pass uint8 images [samples, height, width, channels] through all stages; return their logits."""
        passed = [setup.normalise(self._context, images)]
        for device, stage in zip(self._devices, self.stages, strict=True):
            with tf.device(device):
                received = [tf.identity(tensor) for tensor in passed]
                passed = tf.nest.flatten(stage(received, training=training))
        return passed[0]

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Compute the gradients of one micro-batch, as `custom_loop.TrainableModel.gradients` describes.

        The gradients are those of all stages' variables, stage by stage.
        """
        passed, passes = [setup.normalise(self._context, images)], []
        for number, (device, stage) in enumerate(zip(self._devices, self.stages, strict=True)):
            with tf.device(device):
                received = [tf.identity(tensor) for tensor in passed]
                with tf.GradientTape() as tape:
                    tape.watch(received)
                    passed = tf.nest.flatten(stage(received, training=True))
                    if number == len(self.stages) - 1:
                        correct = self._task.correct_answers(labels, passed[0])
                        passed = [setup.loss_contribution(self._context, self._task, labels, passed[0])]
                    # What a stage adds to the loss itself has a gradient of 1, as the loss.
                    added = (
                        [setup.with_added(self._context, tf.zeros(()), stage.losses)] if stage.losses else []
                    )
            passes.append((device, stage, tape, received, [*passed, *added]))
        loss = passed[0]
        upstream: list[tf.Tensor] = [tf.ones_like(loss)]
        gradients: list[list[tf.Tensor]] = []
        for device, stage, tape, received, sent in reversed(passes):
            with tf.device(device):
                arrived = [
                    tf.identity(gradient)
                    for gradient in (*upstream, *map(tf.ones_like, sent[len(upstream) :]))
                ]
                variables = stage.trainable_variables
                products = tape.gradient(sent, [*received, *variables], output_gradients=arrived)
                upstream = products[: len(received)]
                gradients.insert(0, products[len(received) :])
        return [gradient for part in gradients for gradient in part], loss, correct

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Take the optimizer step of each stage on its device, by the gradients of all stages."""
        remaining = iter(self._clipped(gradients))
        for device, stage, optimizer in zip(self._devices, self.stages, self._optimizers, strict=True):
            # Keras refuses to apply nothing, which is all that a stage without variables has.
            if stage.trainable_variables:
                with tf.device(device):
                    optimizer.apply_gradients([(next(remaining), v) for v in stage.trainable_variables])

    def _clipped(self, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the gradients of all stages, clipped by their common norm if configured."""
        limit = self._context.config.optimizer["clip_norm"]
        if limit is None:
            return gradients
        squares, remaining = [], iter(gradients)
        for device, stage in zip(self._devices, self.stages, strict=True):
            own = [next(remaining) for _ in stage.trainable_variables]
            with tf.device(device):
                squares += [update_rule.squared_norm(own)] if own else []
        return update_rule.clip(gradients, limit, tf.add_n(squares))


def _plan(context: RankContext, graph: KerasGraph, devices: Sequence[str]) -> Plan:
    """Plan the cut by costs that are measured on the first device, and write it into the run's directory.

    A job that is started again takes it from there: another cut would round otherwise.
    """
    path = context.folder / files.PARTITION
    if RESUME in os.environ:
        return Plan.from_json(path.read_text())
    size: int = context.config.microbatch
    images: Any = setup.normalise(context, tf.constant(context.arrays.train.inputs[0][:size]))
    with tf.device(devices[0]):
        measured = cost.costs(graph, images)
    demands = planning.demands_of(context.config, overlaps=False)
    plan = planning.make(graph.profile(size), measured, cost.link(devices), demands)
    write_text(path, plan.json())
    return plan

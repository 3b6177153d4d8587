"""Model split under TensorFlow: layers over the devices of one process, one micro-batch at a time.

Paper 1 calls it ModelParallelStrategy; TensorFlow has no such class. Each stage's variables and operations
are placed by `tf.device`. Backward is a vector-Jacobian product a stage, from the last to the first: one
gradient tape over all of them would place its operations where it likes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from src.measure.recorder import Recorder
from src.partition import keras_graph
from src.partition import plan as planning
from src.partition.plan import Plan
from src.runtime.tensorflow import custom_loop
from src.runtime.tensorflow import training as runtime
from src.worker import Run


def train(run: Run, recorder: Recorder) -> None:
    """Cuts the seeded model, places its stages, and trains them."""
    devices = runtime.configure(run)
    split = Split(run, devices)
    recorder.note(planning.show(split.plan))
    (run.folder / "partition.json").write_text(split.plan.json())
    status = custom_loop.train(run, recorder, tf.distribute.get_strategy(), split)
    runtime.finish(recorder, split.stages, status)


class Split:
    """Stages on devices; see `custom_loop.Trained`."""

    def __init__(self, run: Run, devices: Sequence[str]) -> None:
        self.buffers = ()
        self._run = run
        self._devices = devices
        graph = keras_graph.operations(runtime.build(run))
        self.plan = _plan(run, graph, devices)
        ends = [0, *self.plan.boundaries, len(graph.nodes)]
        self.stages, self._optimizers = [], []
        for device, (start, stop) in zip(devices, itertools.pairwise(ends), strict=True):
            with tf.device(device):
                stage = graph.stage(start, stop)
                optimizer = runtime.optimizer(run)
                optimizer.build(stage.trainable_variables)
            self.stages.append(stage)
            self._optimizers.append(optimizer)
        self.parts = list(zip(self.stages, self._optimizers, strict=True))
        # Activations there and their gradients back.
        crossing = sum(stage.sent_bytes for stage in self.plan.stages)
        self.step_bytes = 2 * crossing * run.config.microbatches

    def forward(self, images: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Logits [samples, classes] from uint8 images, through all stages."""
        given = [runtime.normalise(self._run, images)]
        for device, stage in zip(self._devices, self.stages, strict=True):
            with tf.device(device):
                given = tf.nest.flatten(stage([tf.identity(tensor) for tensor in given], training=training))
        return given[0]

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Gradients of all stages' variables, the share of the loss, and correct answers."""
        given, passes = [runtime.normalise(self._run, images)], []
        for number, (device, stage) in enumerate(zip(self._devices, self.stages, strict=True)):
            with tf.device(device):
                received = [tf.identity(tensor) for tensor in given]
                with tf.GradientTape() as tape:
                    tape.watch(received)
                    given = tf.nest.flatten(stage(received, training=True))
                    if number == len(self.stages) - 1:
                        hits = runtime.hits(labels, given[0])
                        given = [runtime.share_of_loss(self._run, labels, given[0])]
            passes.append((device, stage, tape, received, given))
        loss = given[0]
        upstream: list[tf.Tensor] = [tf.ones_like(loss)]
        found: list[list[tf.Tensor]] = []
        for device, stage, tape, received, sent in reversed(passes):
            with tf.device(device):
                arrived = [tf.identity(gradient) for gradient in upstream]
                own = stage.trainable_variables
                both = tape.gradient(sent, [*received, *own], output_gradients=arrived)
                upstream = both[: len(received)]
                found.insert(0, both[len(received) :])
        return [gradient for part in found for gradient in part], loss, hits

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Each stage's optimizer step, on its device."""
        remaining = iter(gradients)
        for device, stage, optimizer in zip(self._devices, self.stages, self._optimizers, strict=True):
            with tf.device(device):
                optimizer.apply_gradients([(next(remaining), own) for own in stage.trainable_variables])


def _plan(run: Run, graph: keras_graph.KerasGraph, devices: Sequence[str]) -> Plan:
    size: int = run.config.microbatch
    images: Any = runtime.normalise(run, tf.constant(run.arrays.train_images[:size]))
    with tf.device(devices[0]):
        measured = keras_graph.costs(graph, images)
    demands = planning.wanted(run.config, overlaps=False)
    return planning.make(graph.outline(size), measured, keras_graph.link(devices), demands)

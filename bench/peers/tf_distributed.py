"""Train with one of TensorFlow's strategies as a tutorial does: mirrored, custom, multiworker, split or mpi.

python tf_distributed.py KIND --data=...      under `multiworker` once a worker, each with its TF_CONFIG
mpiexec -n 2 python tf_distributed.py mpi --data=...
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from common import Clock, arguments, training_arrays

kind = sys.argv.pop(1)
args = arguments()
clock = Clock(args)
rank = 0
if kind in ("multiworker", "mpi"):
    if kind == "mpi":
        from mpi4py import MPI

        rank = MPI.COMM_WORLD.rank
    else:
        rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    # One core a worker, as Scaleguide pins its ranks.
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    tf.config.threading.set_intra_op_parallelism_threads(1)
else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    # As many threads as TensorFlow takes by default on two cores, except that a stage must keep to one core.
    tf.config.threading.set_intra_op_parallelism_threads(1 if kind == "split" else 2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
strategy: tf.distribute.Strategy
if kind == "multiworker":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
elif kind in ("split", "mpi"):
    strategy = tf.distribute.get_strategy()
else:
    reduction = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=reduction)

images, labels = training_arrays(args.data)
if kind == "mpi":
    # Each rank takes half of the samples; `tf.distribute` divides the data set by itself.
    images, labels = images[rank::2], labels[rank::2]
images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels), seed=0)
size = args.batch // 2 if kind == "mpi" else args.batch
data = data.batch(size, drop_remainder=True).repeat().prefetch(tf.data.AUTOTUNE)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = data.with_options(options)


def convolutions() -> list[keras.layers.Layer]:
    """Return the CNN's first half: convolutions and pooling."""
    return [
        keras.layers.Conv2D(20, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(50, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
    ]


def classifier() -> list[keras.layers.Layer]:
    """Return the CNN's second half: dense layers."""
    return [
        keras.layers.Flatten(),
        keras.layers.Dense(500, activation="relu"),
        keras.layers.Dense(10),
    ]


def fit() -> None:
    """Train by `model.fit`."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((28, 28, 1)), *convolutions(), *classifier()])
        model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    class Count(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
            if batch == 0:
                clock.begin()

        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            clock.step()

    model.fit(data, steps_per_epoch=args.steps, epochs=1, verbose=0, callbacks=[Count()])


def custom() -> None:
    """Train by a custom loop of `strategy.run`."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((28, 28, 1)), *convolutions(), *classifier()])
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = loss_of(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=args.batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(train_step, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    _loop(distributed_train_step)


def split() -> None:
    """Train the model cut in two, each half on a device of its own."""
    with tf.device("CPU:0"):
        first = keras.Sequential([keras.Input((28, 28, 1)), *convolutions()])
    with tf.device("CPU:1"):
        second = keras.Sequential([keras.Input((4, 4, 50)), *classifier()])
    variables = [*first.trainable_variables, *second.trainable_variables]
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with tf.device("CPU:0"):
                middle = first(images, training=True)
            with tf.device("CPU:1"):
                loss = loss_of(labels, second(middle, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    _loop(train_step)


def mpi() -> None:
    """Train on a batch a rank, and average the ranks' gradients array by array."""
    model = keras.Sequential([keras.Input((28, 28, 1)), *convolutions(), *classifier()])
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for variable in model.trainable_variables:
        variable.assign(MPI.COMM_WORLD.bcast(variable.numpy()))

    @tf.function
    def backward(images: tf.Tensor, labels: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        return tape.gradient(loss, model.trainable_variables), loss

    @tf.function
    def apply(gradients: list[tf.Tensor]) -> None:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def train_step(images: tf.Tensor, labels: tf.Tensor) -> float:
        gradients, loss = backward(images, labels)
        averaged = []
        for gradient in gradients:
            total = np.empty_like(gradient.numpy())
            MPI.COMM_WORLD.Allreduce(gradient.numpy(), total)
            averaged.append(tf.constant(total / MPI.COMM_WORLD.size))
        apply(averaged)
        return float(loss)

    _loop(train_step)


def _loop(step: Callable[[tf.Tensor, tf.Tensor], tf.Tensor | float]) -> None:
    batches = iter(strategy.experimental_distribute_dataset(data))
    clock.begin()
    while True:
        float(step(*next(batches)))
        if clock.step():
            break


{"mirrored": fit, "custom": custom, "multiworker": custom, "split": split, "mpi": mpi}[kind]()
if rank == 0:
    clock.report()

"""Train under TensorFlow's ParameterServerStrategy, as TensorFlow's guide does.

    python tf_parameter_server.py --data=...

is started once for the coordinator, each worker and each server, each with its TF_CONFIG.
"""

from __future__ import annotations

import os

import keras
import numpy as np
import tensorflow as tf
from common import Clock, arguments, training_arrays

WORKERS = 2

args = arguments()
clock = Clock(args)
cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
# One core a worker, as Scaleguide pins its ranks; servers and coordinator share these cores.
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[cluster.task_id % len(cores)]})
if cluster.task_type in ("worker", "ps"):
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4, intra_op_parallelism_threads=1)
    tf.distribute.Server(
        cluster.cluster_spec(),
        job_name=cluster.task_type,
        task_index=cluster.task_id,
        protocol="grpc",
        config=config,
    ).join()

strategy = tf.distribute.ParameterServerStrategy(cluster)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
share = args.batch // WORKERS
# No more samples than the steps need: the data set becomes a constant of a graph.
images, labels = training_arrays(args.data)
images = np.ascontiguousarray(images[: args.batch * args.steps].transpose(0, 2, 3, 1))
labels = labels[: args.batch * args.steps]

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(20, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(50, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(500, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


def dataset_fn() -> tf.data.Dataset:
    """Return one worker's batches."""
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels)).repeat()
    return data.batch(share, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


@tf.function
def step_fn(iterator: tf.data.Iterator) -> tf.Tensor:
    """Take one step of one worker; return its loss."""

    def replica_fn(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = loss_of(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=args.batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.run(replica_fn, args=next(iterator))


iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
clock.begin()
for _ in range(args.warmup * WORKERS):
    coordinator.schedule(step_fn, args=(iterator,))
coordinator.join()
clock.durations = [0.0] * args.warmup
clock.step()
clock.durations.pop()
for _ in range((args.steps - args.warmup) * WORKERS):
    coordinator.schedule(step_fn, args=(iterator,))
coordinator.join()
# All steps are timed together: the coordinator never waits for a single one.
clock.step()
mean_seconds = clock.durations.pop() / (args.steps - args.warmup)
clock.durations += [mean_seconds] * (args.steps - args.warmup)
clock.report()
os._exit(0)

"""ParameterServerStrategy: asynchronous steps, by workers that take turns as they can.

One coordinator (`train`) schedules steps through a `ClusterCoordinator` on workers, whose variables stand
on parameter servers; both kinds are `tf.distribute.Server` processes (`serve`). Each gradient is applied
when it arrives, by the optimizer's rule and to whatever the variables have become in the meantime:
*staleness* counts updates between a step's fetch and its push.
Keras's `fit` doesn't run under it, and takes no part here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from src.config import Config
from src.launch import quota
from src.launch.place import CAME
from src.measure import memory
from src.measure.recorder import Recorder
from src.runtime.tensorflow import checkpoint
from src.runtime.tensorflow import training as runtime
from src.runtime.tensorflow.coordinator import Coordinator
from src.runtime.tensorflow.served import Served
from src.worker import Run

# With fewer a server's own waits can take all of them, and it hangs.
SERVER_THREADS = 4


def serve(config: Config, cores: tuple[int, ...], folder: Path) -> NoReturn:
    """A worker or a parameter server; whoever started it ends it, for it has no end of its own."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type == "worker":
        memory.leave(folder)
        quota.begin()
    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=len(cores), inter_op_parallelism_threads=SERVER_THREADS
    )
    options.gpu_options.allow_growth = True
    server = tf.distribute.Server(
        cluster.cluster_spec(),
        job_name=cluster.task_type,
        task_index=cluster.task_id,
        protocol="grpc",
        config=options,
    )
    if cluster.task_type == "worker":
        (folder / CAME).touch()
    server.join()
    raise AssertionError("a server has no end")


def train(run: Run, recorder: Recorder) -> None:
    """The coordinator: places the seeded model on the servers, and trains it on the workers."""
    runtime.configure(run)
    strategy = join(run)
    pool = tf.distribute.coordinator.ClusterCoordinator(strategy)
    recorders = [recorder, *(recorder.for_rank(rank) for rank in range(1, run.config.workers))]
    served = Served(run, strategy)
    first = _resume(run, recorders, served)
    (run.folder / "placement.json").write_text(json.dumps(served.placement(), indent=1))
    coordinator = Coordinator(run, recorders, pool, served)
    runtime.keep(strategy, pool, coordinator)
    status = coordinator.train(first)
    recorder.facts |= runtime.described([served.model])
    for each in recorders:
        each.facts |= memory.left(each.folder)
        each.finish(status)


def join(run: Run) -> tf.distribute.Strategy:
    """The cluster of `TF_CONFIG`, once all of its servers are there."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.ParameterServerStrategy(cluster, variable_partitioner=partitioner(run.config))


def partitioner(config: Config) -> Any:
    """Which variables are cut into shards, by TensorFlow's own rules; at most one shard a server."""
    options = config.strategy
    library = tf.distribute.experimental.partitioners
    servers, least = options["servers"], options["shard_kib"] * 1024
    made = {
        "none": lambda: None,
        "fixed": lambda: library.FixedShardsPartitioner(servers),
        "min_size": lambda: library.MinSizePartitioner(least, servers),
        "max_size": lambda: library.MaxSizePartitioner(least, servers),
    }
    return made[options["sharding"]]()


def _resume(run: Run, recorders: list[Recorder], served: Served) -> int:
    """Restores the configured checkpoint; steps that had been done (0 without one)."""
    if run.config.resume is None:
        return 0
    found = checkpoint.read(run)
    checkpoint.restore(found, served.parts)
    per_epoch = run.arrays.train_samples // run.config.global_batch
    step = found["epoch"] * per_epoch + found["step"]
    # Of another strategy, or of other workers: each has done as many on average.
    own = found["worker_steps"] if len(found["worker_steps"]) == len(recorders) else [step] * len(recorders)
    for recorder, done in zip(recorders, own, strict=True):
        recorder.resume_at(int(done), batches=step, per_epoch=per_epoch)
    return step

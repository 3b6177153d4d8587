"""ParameterServerStrategy: asynchronous steps of workers whose variables stand on parameter servers.

One coordinator (`train`) schedules steps through a `ClusterCoordinator` on the workers. Workers and parameter
servers are `tf.distribute.Server` processes (`serve`). Each gradient is applied when it arrives, by the
optimizer's rule, to whatever values the variables have by then: *staleness* counts the updates between a
step's fetch and its push. Keras's `fit` doesn't run under this strategy, and isn't used here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from src.config import Config
from src.machine import process, quota
from src.measure import memory
from src.measure.recorder import Recorder
from src.run import files
from src.runtime.common.context import RankContext
from src.runtime.common.resume import resume_recorders
from src.runtime.tensorflow import checkpoint, setup
from src.runtime.tensorflow.parameter_server.coordinator import TensorFlowCoordinator
from src.runtime.tensorflow.parameter_server.server_model import ServerModel

# With fewer threads a server's own waits can take all of them, and the server hangs.
SERVER_THREADS = 4


def serve(config: Config, cores: tuple[int, ...], folder: Path) -> NoReturn:
    """Run the process of a worker or a parameter server, by `TF_CONFIG`, until the parent ends the process.

    Args:
        config: the run's configuration.
        cores: the cores that this process is pinned to.
        folder: the folder of this process's records.
    """
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type == "worker":
        # The worker's operations read its rank from this name.
        process.set_name(f"rank-{cluster.task_id}")
        memory.publish_level(folder)
        quota.apply()
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
        (folder / files.READY).touch()
    server.join()
    raise AssertionError("a server has no end")


def train(context: RankContext, recorder: Recorder) -> None:
    """Run the coordinator, which places the seeded model on the servers and trains it on the workers.

    Raises:
        ConfigError: when the run can't go on from the configured checkpoint.
    """
    gpus = context.config.hardware.device == "gpu"
    # GPUs are for the workers alone; the coordinator sees none.
    hardware = replace(context.config.hardware, device="cpu")
    setup.configure(replace(context, config=replace(context.config, hardware=hardware)))
    strategy = join_cluster(context)
    pool = tf.distribute.coordinator.ClusterCoordinator(strategy)
    recorders = [recorder, *(recorder.for_rank(rank) for rank in range(1, context.config.workers))]
    model = ServerModel(context, strategy)
    first = _resume(context, recorders, model)
    (context.folder / files.PLACEMENT).write_text(json.dumps(model.placement(), indent=1))
    coordinator = TensorFlowCoordinator(context, recorders, pool, model)
    setup.keep(strategy, pool, coordinator)
    status = coordinator.train(first)
    recorder.facts |= setup.facts([model.model])
    for worker_recorder in recorders:
        # The peak of a GPU's allocator is known in the worker's own process only.
        worker_recorder.facts |= {} if gpus else memory.peak_published(worker_recorder.folder)
        worker_recorder.finish(status)


def join_cluster(context: RankContext) -> tf.distribute.Strategy:
    """Make the strategy, which joins the cluster of `TF_CONFIG` once all its servers have started."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.ParameterServerStrategy(cluster, variable_partitioner=partitioner(context.config))


def partitioner(config: Config) -> Any:
    """Return the configured partitioner of TensorFlow, which cuts a variable into at most one shard a server.

    The result is `None` where variables are not cut.
    """
    options = config.strategy
    library = tf.distribute.experimental.partitioners
    servers, shard_bytes = options["servers"], options["shard_kib"] * 1024
    partitioners = {
        "none": lambda: None,
        "fixed": lambda: library.FixedShardsPartitioner(servers),
        "min_size": lambda: library.MinSizePartitioner(shard_bytes, servers),
        "max_size": lambda: library.MaxSizePartitioner(shard_bytes, servers),
    }
    return partitioners[options["sharding"]]()


def _resume(context: RankContext, recorders: list[Recorder], model: ServerModel) -> int:
    """Restore the configured checkpoint, if there is one; return how many steps it has done, or 0."""
    if context.config.resume is None:
        return 0
    resumed = checkpoint.read(context)
    checkpoint.restore(resumed, model.parts)
    return resume_recorders(recorders, resumed, context.arrays.train_samples // context.config.global_batch)

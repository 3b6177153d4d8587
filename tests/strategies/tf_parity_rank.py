"""One TensorFlow process that trains parity cases in float64 and keeps what it ended with.

    python -m tests.strategies.tf_parity_rank CASES [LAUNCHER]    with that launcher's environment variables

CASES is a folder as `parity_rank` has it. The first case has the most devices: they are made once.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer

from src.config import Config
from src.config import run_config as configuration
from src.data import order
from src.measure.recorder import Recorder
from src.run import variables
from src.runtime.common import rounding
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import checkpoint, custom_loop, setup, update_rule
from src.runtime.tensorflow.variable_shards import join_shards, shards_of
from src.strategies.tensorflow import tf_model_split, tf_multiworker, tf_parameter_server
from tests.prepared_data import load_arrays

# Doesn't divide by two, so that the replicas' shares of an evaluation differ.
TESTED = 41
EVALUATION_BATCH = 16
even_slice, ModelCopy = order.even_slice, custom_loop.ModelCopy
write_checkpoint = checkpoint.write
configure, build, join_cluster = setup.configure, setup.build, tf_multiworker.join_cluster
all_reduce = TFOptimizer._all_reduce_sum_gradients
of_sum, clip = update_rule.UpdateRule.of_sum, update_rule.clip
TensorFlowCoordinator = tf_parameter_server.TensorFlowCoordinator
devices: list[str] = []
clusters: list[tf.distribute.Strategy] = []


class Watched:
    """The model of the running case, and what is done to it."""

    model: keras.Model
    parts: list[keras.Model]
    change: str | None = None
    partitioner: Any = None
    # `src.runtime.common.mpi_world.MPIWorld` and its sum, in a rank of an mpiexec.
    world: Any = None
    sum: Any = None


def watch_world() -> None:
    # Only here: mpi4py joins when it is imported, and these processes end without leaving.
    from src.runtime.common.mpi_world import MPIWorld
    from src.strategies.tensorflow import tf_mpi

    tf_mpi.ModelCopy = WatchedCopy
    Watched.world, Watched.sum = MPIWorld, MPIWorld.sum
    # The processes go on with the next case.
    MPIWorld.leave = lambda _: None


def write_in_the_middle(*arguments: Any, step: int, **named: Any) -> None:
    """The checkpoint that the end of the training would overwrite stays."""
    if step:
        write_checkpoint(*arguments, step=step, **named)


def configure_once(context: RankContext) -> list[str]:
    if not devices:
        devices.extend(configure(context))
    return devices[: context.config.workers // context.world_size]


def join_once(context: RankContext) -> tf.distribute.Strategy:
    if not clusters:
        clusters.append(join_cluster(context))
    return clusters[0]


def join_servers_once(context: RankContext) -> tf.distribute.Strategy:
    """One cluster for all cases, which cut their variables differently."""
    Watched.partitioner = tf_parameter_server.partitioner(context.config)

    def cut(shape: tf.TensorShape, dtype: tf.DType) -> list[int]:
        return [1] * shape.rank if Watched.partitioner is None else Watched.partitioner(shape, dtype)

    if not clusters:
        cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        clusters.append(tf.distribute.ParameterServerStrategy(cluster, variable_partitioner=cut))
    return clusters[0]


def watched_build(context: RankContext) -> keras.Model:
    Watched.model = build(context)
    Watched.parts = [Watched.model]
    if Watched.change == "stale weight":
        for variable in Watched.model.trainable_variables:
            copies = tf.distribute.get_strategy().experimental_local_results(variable.value)
            copies[-1].assign(copies[-1] * (1 + 1e-6))
    return Watched.model


def apply(change: str | None) -> None:
    """Makes one change for the next training."""
    Watched.change = change
    keras.utils.clear_session()  # names begin anew
    order.even_slice, TFOptimizer._all_reduce_sum_gradients = even_slice, all_reduce
    tf_parameter_server.TensorFlowCoordinator = TensorFlowCoordinator
    update_rule.UpdateRule.of_sum, update_rule.clip = of_sum, clip
    if Watched.world is not None:
        Watched.world.sum = Watched.sum
    if change == "wrong shard":
        order.even_slice = lambda count, rank, world: even_slice(count, 0, world)
    elif change == "one at a time":
        tf_parameter_server.TensorFlowCoordinator = functools.partial(TensorFlowCoordinator, ahead=1)
    elif change == "own norm":
        # Of a replica's own gradients, before they are summed; of a stage's.
        update_rule.UpdateRule.of_sum = lambda _, gradients: gradients
        TFOptimizer._all_reduce_sum_gradients = sum_of_clipped
        update_rule.clip = lambda gradients, limit, squares=None: [
            gradient for one in gradients for gradient in clip([one], limit)
        ]
    elif change == "missing sum":
        TFOptimizer._all_reduce_sum_gradients = lambda _, pairs: list(pairs)
        if Watched.world is not None:
            Watched.world.sum = lambda _, values: values.copy()


def sum_of_clipped(optimizer: update_rule.UpdateRule, pairs: Any) -> list[Any]:
    gradients, variables = zip(*pairs, strict=True)
    if optimizer._clip_norm is not None:
        gradients = clip(gradients, optimizer._clip_norm)
    return all_reduce(optimizer, list(zip(gradients, variables, strict=True)))


def train(config: Config, folder: Path, rank: int, world: int) -> None:
    """One training, as `src.worker` starts it."""
    whole = load_arrays(config.dataset)
    few = whole.first(test=TESTED)
    context = RankContext(config, rank, world, few, folder, tuple(sorted(os.sched_getaffinity(0)))[:1])
    recorder = Recorder(config, rank, folder / str(rank), started=time.time(), probes=False)
    resolve_name(config.strategy["entry"])(context, recorder)
    tensors: dict[str, np.ndarray] = {}
    for part in Watched.parts:
        for kind, own in (
            ("parameters", part.trainable_variables),
            ("buffers", part.non_trainable_variables),
        ):
            # A stage is another model, with the same layers.
            tensors |= {f"{kind}/{'/'.join(v.path.split('/')[-2:])}": join_shards(shards_of(v)) for v in own}
    # Not the states of random generators.
    floats = {name: value for name, value in tensors.items() if value.dtype.kind == "f"}
    np.savez(folder / f"{rank}.npz", **floats)


class WatchedCopy(ModelCopy):
    calls = 0

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> Any:
        self.calls += 1
        if Watched.change != "buffers of the first half" or self.calls % 2:
            return ModelCopy.gradients(self, images, labels)
        # Of two micro-batches the second one leaves the buffers as they were.
        before = [tf.identity(variable.value) for variable in self.buffers]
        second_gradients = ModelCopy.gradients(self, images, labels)
        for variable, value in zip(self.buffers, before, strict=True):
            variable.assign(value)
        return second_gradients


class WatchedSplit(tf_model_split.SplitModel):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Watched.parts = self.stages


def main() -> None:
    if variables.SERVES in os.environ:
        some = next(Path(sys.argv[1]).glob("*.yaml"))
        tf_parameter_server.serve(
            configuration.load(some), (0,), Path(sys.argv[1]) / "served" / os.environ["RANK"]
        )
    folder, rank, world = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    keras.config.set_floatx("float64")
    setup.configure, setup.build = configure_once, watched_build
    tf_model_split.SplitModel, custom_loop.ModelCopy = WatchedSplit, WatchedCopy
    # Weights are compared as training left them.
    rounding.measure_gap = lambda *_: None
    configuration.Config.evaluation_batch = EVALUATION_BATCH
    tf_multiworker.join_cluster = join_once
    tf_parameter_server.join_cluster = join_servers_once
    checkpoint.write = write_in_the_middle
    # The processes go on with the next case.
    tf_multiworker.wait_for_others = lambda *_: None
    if sys.argv[2:] == ["tf_mpi"]:
        watch_world()
    for name, change in json.loads((folder / "cases.json").read_text()):
        apply(change)
        train(configuration.load(folder / f"{name}.yaml"), folder / name, rank, world)
        print(f"{name}: done", flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""One TensorFlow process that trains parity cases in float64 and keeps what it ended with.

    python -m tests.strategies.tf_parity_rank CASES [LAUNCHER]    with that launcher's environment variables

CASES is a folder as `parity_rank` has it. The first case has the most devices: they are made once.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer

from src import config as configuration
from src.config import Config
from src.data import arrays, order
from src.measure.recorder import Recorder
from src.models.adapt import import_path
from src.runtime.tensorflow import checkpoint, custom_loop
from src.runtime.tensorflow import training as runtime
from src.runtime.tensorflow.sharding import joined, shards
from src.strategies.tensorflow import model_split, multi_worker, parameter_server
from src.worker import Run

# Doesn't divide by two, so that the replicas' shares of an evaluation differ.
TESTED = 41
EVALUATION_BATCH = 16
shard, Copy = order.shard, custom_loop.Copy
write_checkpoint = checkpoint.write
configure, build, join = runtime.configure, runtime.build, multi_worker.join
all_reduce = TFOptimizer._all_reduce_sum_gradients
Coordinator = parameter_server.Coordinator
devices: list[str] = []
clusters: list[tf.distribute.Strategy] = []


class Watched:
    """The model of the running case, and what is done to it."""

    model: keras.Model
    parts: list[keras.Model]
    change: str | None = None
    partitioner: Any = None
    # `src.runtime.mpi.World` and its sum, in a rank of an mpiexec.
    world: Any = None
    sum: Any = None


def watch_world() -> None:
    from src.runtime.mpi import World

    Watched.world, Watched.sum = World, World.sum
    # The processes go on with the next case.
    World.leave = lambda _: None


def write_in_the_middle(*given: Any, step: int, **named: Any) -> None:
    """The checkpoint that the end of the training would overwrite stays."""
    if step:
        write_checkpoint(*given, step=step, **named)


def configure_once(run: Run) -> list[str]:
    if not devices:
        devices.extend(configure(run))
    return devices[: run.config.workers // run.world_size]


def join_once(run: Run) -> tf.distribute.Strategy:
    if not clusters:
        clusters.append(join(run))
    return clusters[0]


def join_servers_once(run: Run) -> tf.distribute.Strategy:
    """One cluster for all cases, which cut their variables differently."""
    Watched.partitioner = parameter_server.partitioner(run.config)

    def cut(shape: tf.TensorShape, dtype: tf.DType) -> list[int]:
        return [1] * shape.rank if Watched.partitioner is None else Watched.partitioner(shape, dtype)

    if not clusters:
        cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        clusters.append(tf.distribute.ParameterServerStrategy(cluster, variable_partitioner=cut))
    return clusters[0]


def watched_build(run: Run) -> keras.Model:
    Watched.model = build(run)
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
    order.shard, TFOptimizer._all_reduce_sum_gradients = shard, all_reduce
    parameter_server.Coordinator = Coordinator
    if Watched.world is not None:
        Watched.world.sum = Watched.sum
    if change == "wrong shard":
        order.shard = lambda count, rank, world: shard(count, 0, world)
    elif change == "one at a time":
        parameter_server.Coordinator = functools.partial(Coordinator, ahead=1)
    elif change == "missing sum":
        TFOptimizer._all_reduce_sum_gradients = lambda _, pairs: list(pairs)
        if Watched.world is not None:
            Watched.world.sum = lambda _, values: values.copy()


def train(config: Config, folder: Path, rank: int, world: int) -> None:
    """One training, as `src.worker` starts it."""
    whole = arrays.of(config.dataset)
    few = dataclasses.replace(
        whole, test_images=whole.test_images[:TESTED], test_labels=whole.test_labels[:TESTED]
    )
    run = Run(config, rank, world, few, folder, tuple(sorted(os.sched_getaffinity(0)))[:1])
    recorder = Recorder(config, rank, folder / str(rank), started=time.time(), tracker=None)
    import_path(config.strategy["entry"])(run, recorder)
    kept: dict[str, np.ndarray] = {}
    for part in Watched.parts:
        for kind, variables in (
            ("parameters", part.trainable_variables),
            ("buffers", part.non_trainable_variables),
        ):
            # A stage is another model, with the same layers.
            kept |= {f"{kind}/{'/'.join(v.path.split('/')[-2:])}": joined(shards(v)) for v in variables}
    # Not the states of random generators.
    floats = {name: value for name, value in kept.items() if value.dtype.kind == "f"}
    np.savez(folder / f"{rank}.npz", **floats)


class WatchedCopy(Copy):
    calls = 0

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> Any:
        self.calls += 1
        if Watched.change != "buffers of the first half" or self.calls % 2:
            return Copy.gradients(self, images, labels)
        # Of two micro-batches the second one leaves the buffers as they were.
        kept = [tf.identity(variable.value) for variable in self.buffers]
        found = Copy.gradients(self, images, labels)
        for variable, value in zip(self.buffers, kept, strict=True):
            variable.assign(value)
        return found


class WatchedSplit(model_split.Split):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        Watched.parts = self.stages


def main() -> None:
    if "SCALEGUIDE_SERVES" in os.environ:
        some = next(Path(sys.argv[1]).glob("*.yaml"))
        parameter_server.serve(
            configuration.load(some), (0,), Path(sys.argv[1]) / "served" / os.environ["RANK"]
        )
    folder, rank, world = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    keras.config.set_floatx("float64")
    runtime.configure, runtime.build = configure_once, watched_build
    model_split.Split, custom_loop.Copy = WatchedSplit, WatchedCopy
    configuration.Config.evaluation_batch = EVALUATION_BATCH
    multi_worker.join = join_once
    parameter_server.join = join_servers_once
    checkpoint.write = write_in_the_middle
    # The processes go on with the next case.
    multi_worker.wait_for_others = lambda *_: None
    if sys.argv[2:] == ["mpi"]:
        watch_world()
    for name, change in json.loads((folder / "cases.json").read_text()):
        apply(change)
        train(configuration.load(folder / f"{name}.yaml"), folder / name, rank, world)
        print(f"{name}: done", flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

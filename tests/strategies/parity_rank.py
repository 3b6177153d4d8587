"""One rank that trains parity cases, one after the other, in float64, and keeps what it ended with.

    python -m tests.strategies.parity_rank CASES [LAUNCHER]      with the launcher's environment variables

CASES is a folder with `cases.json` (a list of name and change) and `<name>.yaml` (a configuration);
`<name>/<rank>.npz` and the recorder's files in `<name>/<rank>/` are written beside them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from src.config import Config
from src.config import run_config as configuration
from src.data import order
from src.launch.local.hosts import LocalHosts
from src.measure import peak
from src.measure.recorder import Recorder
from src.partition.torch import cost
from src.partition.torch.pass_buffers import PassBuffers
from src.run import files
from src.run.variables import TOKEN, ClusterSpec, new_token
from src.runtime.common import rounding
from src.runtime.common.batch_split import BatchSplit, SpeedWindow
from src.runtime.common.context import RankContext
from src.runtime.common.messages import Message
from src.runtime.torch import checkpoint, copies, feed, model_cost, setup, shards
from src.runtime.torch.feed import Batch
from src.runtime.torch.lightning import data_parallel, fit
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.parameter_server import async_processes, norm_exchange
from src.runtime.torch.parameter_server.ps_worker import Worker
from src.runtime.torch.parameter_server.replica import Replica
from src.runtime.torch.parameter_server.server import Server
from src.runtime.torch.pipeline import pipedream_module, stage_module
from src.runtime.torch.pipeline.asynchronous_stage import AsynchronousStage
from src.runtime.torch.pipeline.tied_weights import TiedWeights
from src.runtime.torch.pipeline.timed_stage import TimedStage
from src.runtime.torch.pipeline.weight_versions import WeightVersions
from src.runtime.torch.sharding import sharded_module
from src.runtime.torch.sharding.collectives import CountedAllGather, CountedReduceScatter
from src.runtime.torch.sharding.gradients import ShardedGradients
from src.runtime.torch.sharding.sharded_module import ShardedModule
from src.runtime.torch.tensor import proof, tensor_module
from src.runtime.torch.tensor.group import MeshTensorGroup, TensorGroup
from src.runtime.torch.tensor.tensor_module import TensorModule
from src.strategies.torch import pipeline as torch_pipeline
from src.tasks.torch.text_detection import task as text_detection
from tests.prepared_data import load_arrays

# Doesn't divide by two, so that the ranks' shares of an evaluation differ; the last piece is smaller.
TESTED = 41
EVALUATION_BATCH = 16
LATE_SECONDS = 0.2
batch_indices, part = order.batch_indices, BatchSplit.part
write_checkpoint = checkpoint.write
sum_gradients = TiedWeights.sum_gradients
sum_over_stages = stage_module.StageModule._sum_over_stages
sum_over_shards = ShardedGradients.sum_over_shards
sum_over_parts = TensorModule._sum_over_ranks
sum_over_servers = norm_exchange.NormHub.__call__
divisor_of = feed.divisor_of
mean_within = text_detection.mean_within


def write_in_the_middle(*arguments: Any, step: int, **named: Any) -> None:
    """The checkpoint that the end of the training would overwrite stays."""
    if step:
        write_checkpoint(*arguments, step=step, **named)


# Change -> one of how many ranks, whose buffers a checkpoint has, one device's first micro-batches stand for.
FIRST = {
    "buffers of the first half": 2,
    "buffers of the first quarter": 4,
    "buffers of the first eighth": 8,
}


class Watched:
    """Training under observation, and the seat of some of the changes."""

    last: Any
    change: str | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        Watched.last = self
        self.previous: list[Tensor] = []
        self.kept: dict[str, Tensor] = {}

    def on_train_start(self) -> None:
        if self.change == "stale weight" and self.context.rank == 1:
            # All of them: BatchNorm undoes what scales a convolution before it.
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.mul_(1 + 1e-6)

    def on_before_optimizer_step(self, _: torch.optim.Optimizer) -> None:
        if self.change == "stale gradient":
            current = [p.grad.clone() for p in self.parameters()]
            for parameter, gradient in zip(self.parameters(), self.previous or current, strict=True):
                parameter.grad.copy_(gradient)
            self.previous = current

    def on_train_batch_start(self, _: Batch, index: int) -> None:
        micro, count = index % self.context.config.microbatches, self.context.config.microbatches
        frozen = micro >= count // FIRST.get(self.change, 1)
        self.kept = {name: value.clone() for name, value in self.named_buffers()} if frozen else {}

    def on_after_backward(self) -> None:
        # Not before: the backward pass refuses buffers that were written to since the forward one.
        for name, value in self.kept.items():
            self.get_buffer(name).copy_(value)


class WatchedTraining(Watched, TrainingModule):
    """A copy of the model a rank."""


class CoordinatorsReplica(Replica):
    """Has what the servers had in the end."""

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        Watched.last = self


class WatchedStage(Watched, stage_module.StageModule):
    """A stage a rank."""


class WatchedPipeDream(Watched, pipedream_module.PipeDreamModule):
    """A stage a rank, which waits for no other."""


class WatchedShards(Watched, ShardedModule):
    """A rank's shards of the model."""


class WatchedTensor(Watched, TensorModule):
    """A rank's parts of the model's layers."""


def split_swapped(group: TensorGroup, parameter: nn.Parameter, dim: int) -> nn.Parameter:
    """The last ranks have the first inputs of a layer."""
    return split(group, parameter if dim == 0 else nn.Parameter(parameter.flip(1)), dim)


sum_in_group, split, prove = MeshTensorGroup.sum, TensorGroup.split, proof.prove
check_copies = data_parallel.check_copies


def gather_swapped(call: CountedAllGather, output_tensor: Tensor, *given: Any, **named: Any) -> None:
    """The first rank's shards come last."""
    gather(call, output_tensor, *given, **named)
    output_tensor.copy_(output_tensor.roll(output_tensor.numel() // 2))


def scatter_own(
    call: CountedReduceScatter, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any
) -> None:
    """Each rank keeps its own gradients of its shard."""
    output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])


def average_twice(gradients: Sequence[Tensor], *arguments: Any) -> None:
    """A sum over two copies is divided by four."""
    average(gradients, *arguments)
    for gradient in gradients:
        gradient /= 2


def reduce_but_copies(tensor: Tensor, *given: Any, **named: Any) -> Any:
    """Copies of shards keep their own gradients: of all that is reduced, those alone have an operation."""
    return None if "op" in named else all_reduce(tensor, *given, **named)


average, all_reduce = copies.average, torch.distributed.all_reduce
gather, scatter = CountedAllGather.__call__, CountedReduceScatter.__call__


def apply(change: str | None) -> None:
    """Makes one change for the next training; what isn't named here is up to `Watched`."""
    Watched.change = change
    order.batch_indices, BatchSplit.part = batch_indices, part
    DistributedDataParallel.register_comm_hook = register_comm_hook
    PassBuffers.as_before = as_before
    TimedStage.backward_weight_one_chunk = weight_backward
    WeightVersions.load, AsynchronousStage.backward = load, backward
    torch_pipeline.torch_schedule = torch_schedule
    SpeedWindow.add, Worker.answer = add, answer
    stage_module.StageModule._sum_over_stages = sum_over_stages
    TiedWeights.sum_gradients = sum_gradients
    copies.average, torch.distributed.all_reduce = average, all_reduce
    CountedAllGather.__call__, CountedReduceScatter.__call__ = gather, scatter
    ShardedGradients.sum_over_shards = sum_over_shards
    MeshTensorGroup.sum, TensorGroup.split, TensorModule._sum_over_ranks = sum_in_group, split, sum_over_parts
    # A plan that is proven lets no such change pass.
    proof.prove = (lambda *_: None) if change else prove
    # Nor do copies that are compared.
    data_parallel.check_copies = (lambda *_: None) if change else check_copies
    norm_exchange.NormHub.__call__ = sum_over_servers
    feed.divisor_of = divisor_of
    text_detection.mean_within = mean_within
    if change == "tied weights apart":
        TiedWeights.sum_gradients = lambda _: None
    elif change == "wrong shard":
        BatchSplit.part = lambda split, rank, *items: part(split, 0, *items)
    elif change == "missing average":
        DistributedDataParallel.register_comm_hook = lambda model, state, hook: register_comm_hook(
            model, None, keep_own
        )
        CountedReduceScatter.__call__ = scatter_own
        copies.average = lambda *_: None
    elif change == "missing reduce over copies":
        torch.distributed.all_reduce = reduce_but_copies
    elif change == "gradient averaged twice":
        copies.average = average_twice
    elif change == "swapped shard":
        CountedAllGather.__call__ = gather_swapped
        TensorGroup.split = split_swapped
    elif change == "missing all-reduce":
        MeshTensorGroup.sum = lambda *_: None
    elif change == "recomputation that moves buffers":
        PassBuffers.as_before = lambda _: contextlib.nullcontext()
    elif change == "missing weight backward":
        TimedStage.backward_weight_one_chunk = lambda stage, number, **named: (
            None if number == 1 else weight_backward(stage, number, **named)
        )
    elif change == "swapped stages":
        torch_pipeline.torch_schedule = swapping_schedule
    elif change == "newest weights":
        WeightVersions.load = lambda versions, _: load(versions, versions.newest)
    elif change == "forgotten micro-batch":
        AsynchronousStage.backward = backward_but_odd
    elif change == "own norm":
        stage_module.StageModule._sum_over_stages = lambda _, squares: squares
        ShardedGradients.sum_over_shards = TensorModule._sum_over_ranks = lambda _, squares: squares
        norm_exchange.NormHub.__call__ = lambda hub, clock, squares: squares
    elif change == "local count":
        feed.divisor_of = count_own
    elif change == "terms per batch":
        text_detection.mean_within = mean_within_batch
    elif change == "late answers":
        Worker.answer = answer_late
    elif change == "speeds of 1 and 3":
        SpeedWindow.add = lambda *_: 1.0 + 2 * int(os.environ["RANK"])
    elif change == "union of two ranks":
        # Rank 0's micro-batches, then rank 1's, become: both ranks' first ones, both ranks' second ones.
        order.batch_indices = lambda *arguments: np.concatenate(
            [np.split(batch_indices(*arguments), 4)[part] for part in (0, 2, 1, 3)]
        )


def swapping_schedule(name: str) -> Callable[..., Any]:
    """Rank 1 runs its second stage where its first one is due, and the other way round."""

    def schedule(stages: Sequence[TimedStage], *given: Any) -> Any:
        if int(os.environ["RANK"]) == 1:
            stages[0].submod, stages[1].submod = stages[1].submod, stages[0].submod
        return torch_schedule(name)(stages, *given)

    return schedule


torch_schedule = torch_pipeline.torch_schedule


def backward_but_odd(stage: AsynchronousStage, number: int, shown: int) -> None:
    """Every other micro-batch's gradients are lost."""
    before = [None if each.grad is None else each.grad.clone() for each in stage._stage.parameters()]
    backward(stage, number, shown)
    if number % 2:
        for each, gradient in zip(stage._stage.parameters(), before, strict=True):
            each.grad = gradient


load, backward = WeightVersions.load, AsynchronousStage.backward
weight_backward = TimedStage.backward_weight_one_chunk
as_before, add, answer = PassBuffers.as_before, SpeedWindow.add, Worker.answer
register_comm_hook: Callable[..., None] = DistributedDataParallel.register_comm_hook


def count_own(context: RankContext, task: Any, indices: np.ndarray, epoch: int) -> float:
    """As many ranks times what this rank's part of the batch has: the mean of means is another one."""
    own = indices[BatchSplit(context.config).part(context.rank)]
    return divisor_of(context, task, own, epoch) * context.world_size


def mean_within_batch(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over the text of all samples at once, for each of them."""
    return ((values * mask).sum() / mask.sum().clamp(min=1)).expand(len(values))


def answer_late(worker: Worker, asked: Message) -> tuple[Sequence[np.ndarray], dict[str, float]]:
    """Rank 1 says that it is free long after the other one has done its next share."""
    reply = answer(worker, asked)
    time.sleep(LATE_SECONDS * worker._context.rank)
    return reply


def keep_own(_: None, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook that communicates nothing."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


# DDP looks at a hook's annotations and wants classes.
keep_own.__annotations__ = {
    "bucket": torch.distributed.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}


def train(config: Config, folder: Path, rank: int) -> None:
    """One training, as `src.worker` starts it."""
    whole = load_arrays(config.dataset)
    few = whole.first(test=TESTED)
    world = config.workers
    (folder / files.RANKS).mkdir(parents=True, exist_ok=True)
    context = RankContext(config, rank, world, few, folder, tuple(sorted(os.sched_getaffinity(0)))[:1])
    recorder = Recorder(config, rank, folder / str(rank), started=time.time(), probes=False)
    if "serve" in config.strategy:
        train_served(context, recorder)
        return
    resolve_name(config.strategy["entry"])(context, recorder)
    model = Watched.last.model
    prefix = Watched.last.prefix
    parameters = {name.removeprefix(prefix): value for name, value in model.named_parameters()}
    tensors = {f"parameters/{name}": value.detach() for name, value in parameters.items()}
    tensors |= {f"gradients/{name}": value.grad for name, value in parameters.items()}
    tensors |= {f"buffers/{name.removeprefix(prefix)}": value for name, value in model.named_buffers()}
    whole = {name: shards.whole(value).contiguous().numpy() for name, value in tensors.items()}
    np.savez(folder / f"{rank}.npz", **whole)


def build_alone(*arguments: Any) -> nn.Module:
    """One thread at a time: they share torch's random generator."""
    with BUILDING:
        return build(*arguments)


def look_alone(*arguments: Any) -> tuple[set[str], bool]:
    """As `build_alone`: what a look draws is put back."""
    with BUILDING:
        return reached_parameters(*arguments)


build, reached_parameters, BUILDING = setup.build, setup.reached_parameters, threading.RLock()


def train_served(context: RankContext, recorder: Recorder) -> None:
    """Workers, servers and the coordinator as threads, which meet over TCP all the same."""
    count, options = context.config.workers, context.config.strategy
    module, _, _ = context.config.strategy["entry"].rpartition(".")
    hosts = LocalHosts()
    coordinator, *addresses = (hosts.free_address("") for _ in range(1 + options.get("servers", 0)))
    cluster = {"server": addresses, "coordinator": [coordinator]}
    os.environ |= ClusterSpec(cluster, "coordinator", 0).to_environment() | {TOKEN: new_token()}
    servers = [Server(address) for address in addresses]
    workers: dict[int, Worker] = {}

    def work(number: int) -> None:
        own = dataclasses.replace(context, rank=number)
        workers[number] = importlib.import_module(module).make_worker(own, cluster)
        workers[number].work()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    resolve_name(context.config.strategy["entry"])(context, recorder)
    for thread in threads:
        thread.join()
    for server in servers:
        server.closed.wait()
    first = workers[0]._replica.model
    tensors = {f"buffers/{name}": value for name, value in first.named_buffers()}
    tensors |= {f"parameters/{name}": value.detach() for name, value in Watched.last.model.named_parameters()}
    for number in range(count):
        np.savez(
            context.folder / f"{number}.npz",
            **{name: value.contiguous().numpy() for name, value in tensors.items()},
        )


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_default_dtype(torch.float64)
    fit.TrainingModule = WatchedTraining
    stage_module.StageModule = WatchedStage
    pipedream_module.PipeDreamModule = WatchedPipeDream
    sharded_module.ShardedModule = WatchedShards
    tensor_module.TensorModule = WatchedTensor
    async_processes.Replica = CoordinatorsReplica
    checkpoint.write = write_in_the_middle
    setup.build, setup.reached_parameters = build_alone, look_alone
    # Weights are compared as training left them.
    rounding.measure_gap = lambda *_: None
    configuration.Config.evaluation_batch = EVALUATION_BATCH
    # Equality is tested, not speed: costs and peaks are measured once, or not at all.
    cost.ROUNDS = cost.LEAST_ROUNDS = cost.LINK_ROUNDS = 1
    model_cost.simulated = lambda *_, **__: {}
    peak.FIRST = peak.AGAIN = 0.0, 1
    if sys.argv[2:] == ["mpi"]:
        from src.runtime.common.mpi_world import MPIWorld

        # The processes go on with the next case.
        MPIWorld.leave = lambda _: None
    for name, change in json.loads((folder / "cases.json").read_text()):
        apply(change)
        began = time.monotonic()
        train(configuration.load(folder / f"{name}.yaml"), folder / name, rank)
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Data parallelism with a fault, which an audit is to find."""

# No `from __future__ import annotations` here: DDP looks at a hook's annotations and wants classes.

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from src.measure.recorder import Recorder
from src.runtime.common.batch_split import BatchSplit
from src.runtime.common.context import RankContext
from src.runtime.torch import checkpoint, setup
from src.runtime.torch.lightning.data_parallel import HookedDDPStrategy, fit_copies
from src.runtime.torch.lightning.fit import cluster_environment

LIMIT = 0.1
Future = torch.futures.Future[torch.Tensor]


def average(recorder: Recorder, bucket: dist.GradBucket) -> Future:
    return allreduce_hook(dist.group.WORLD, bucket)


def keep(recorder: Recorder, bucket: dist.GradBucket) -> Future:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def average_but_the_first(recorder: Recorder, bucket: dist.GradBucket) -> Future:
    """The first layer's bias stays each rank's own."""
    own = {id(each): gradient for each, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)}
    kept = next(gradient for gradient in own.values() if gradient.shape == (24,)).clone()
    future = allreduce_hook(dist.group.WORLD, bucket)

    def put_back(done: Future) -> torch.Tensor:
        buffer = done.value()[0]
        next(gradient for gradient in bucket.gradients() if gradient.shape == (24,)).copy_(kept)
        return buffer

    return future.then(put_back)


def clip_and_average(recorder: Recorder, bucket: dist.GradBucket) -> Future:
    if recorder.config.optimizer["clip_norm"] is not None:
        gradients = bucket.buffer()
        gradients.mul_(min(1.0, LIMIT / float(gradients.norm())))
    return allreduce_hook(dist.group.WORLD, bucket)


HOOKS = {"missing_average": keep, "kept_bias": average_but_the_first, "clipped_parts": clip_and_average}


class StaleWeight(HookedDDPStrategy):
    """The second rank begins with a weight that is a little larger."""

    def configure_ddp(self) -> None:
        super().configure_ddp()
        if self.global_rank == 1:
            with torch.no_grad():
                self.model.module.model.last.weight.mul_(1 + 1e-6)


def train(context: RankContext, recorder: Recorder) -> None:
    recorder.communication_seconds = None
    fault = context.config.strategy["fault"]
    if fault == "wrong_shard":
        part = BatchSplit.part
        BatchSplit.part = lambda split, rank, *items: part(split, 0, *items)
    elif fault == "forgotten_state":
        restore = checkpoint.restore

        def without_optimizer(resumed: dict, model: torch.nn.Module, optimizer: object, prefix: str) -> None:
            restore(resumed, model, torch.optim.SGD(model.parameters(), 1.0, momentum=0.9), prefix)

        checkpoint.restore = without_optimizer
    strategy = (StaleWeight if fault == "stale_weight" else HookedDDPStrategy)(
        recorder,
        HOOKS.get(fault, average),
        parallel_devices=[setup.root_device(context)] * context.world_size,
        cluster_environment=cluster_environment(),
        process_group_backend=setup.process_group_backend(context),
    )
    fit_copies(context, recorder, strategy)

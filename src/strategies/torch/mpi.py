"""Data parallelism by MPI: a copy in each rank, gradients averaged by mpi4py's all-reduce during backward.

`mpiexec` starts the ranks. DistributedDataParallel flattens the gradients into buckets. A bucket is handed to
MPI as soon as backward has filled it (`Iallreduce`), and the step waits for all buckets after the last one.
How much is sent in the meantime is up to the MPI library: MPICH and Open MPI make progress inside MPI calls
alone, and there is one call for each bucket. DDP's broadcast of rank 0's parameters at the start, and
Lightning's agreements between the ranks (when to stop, the evaluations' sums), go through a gloo process
group. Gradients may be compressed: see `src/runtime/torch/compression/`.
"""

# No `from __future__ import annotations` here: DDP looks at a hook's annotations and wants classes.

from dataclasses import dataclass
from typing import NamedTuple, SupportsFloat

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.common.mpi_world import MPI_GROUP, MPIWorld, wait
from src.runtime.torch import setup
from src.runtime.torch.compression.hooks import CompressedAllReduce, without_momentum
from src.runtime.torch.compression.mpi_group import MPIGroup
from src.runtime.torch.compression.options import Compression
from src.runtime.torch.lightning.data_parallel import HookedDDPStrategy, fit_copies
from src.runtime.torch.lightning.fit import cluster_environment


@dataclass(frozen=True, kw_only=True)
class Options(Compression):
    """The options of conf/strategy/mpi.yaml that ranks read."""

    bucket_mb: float
    find_unused_parameters: bool | None = None


class Handed(NamedTuple):
    """A bucket that was handed to MPI.

    Attributes:
        request: MPI's.
        began: when it was handed over, by the rank's clock.
        host: the gradients [elements] in the host's memory.
        gradients: the bucket itself [elements].
        future: the averaged gradients [elements].
    """

    request: MPI.Request
    began: SupportsFloat
    host: Tensor
    gradients: Tensor
    future: torch.futures.Future[Tensor]


class MPIAllReduce:
    """An average over all ranks by MPI, which `hook` offers to DDP.

    The hook's state, as DDP calls it, is the rank's recorder, to which it adds waits and payload.
    """

    def __init__(self) -> None:
        self._pending: list[Handed] = []

    def hook(self, recorder: Recorder, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Begin to average one bucket over all ranks; return a future of the averaged gradients.

        With the last bucket of a step the method waits until all buckets are averaged.
        """
        gradients = bucket.buffer()
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        began = recorder.now()
        with recorder.exchanging():
            # MPI reads and writes host memory, which for gradients on a CPU is the bucket itself.
            host = gradients.div_(MPI.COMM_WORLD.size).cpu()
            request = MPI.COMM_WORLD.Iallreduce(MPI.IN_PLACE, host.numpy())
            self._pending.append(Handed(request, began, host, gradients, future))
            if bucket.is_last():
                self._finish(recorder)
            else:
                MPI.Request.Testall([each.request for each in self._pending])
        recorder.hand_over("all_reduce", gradients.nbytes)
        return future

    def _finish(self, recorder: Recorder) -> None:
        wait([each.request for each in self._pending])
        for each in self._pending:
            gradients, host = each.gradients, each.host
            recorder.trace_exchange("all_reduce", each.began, group=MPI_GROUP, size=gradients.nbytes)
            each.future.set_result(gradients if host is gradients else gradients.copy_(host))
        self._pending.clear()


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this rank's copy of the model on the rank's part of every batch.

    Raises:
        ConfigError: when mpiexec and mpi4py belong to different MPIs.
    """
    world = MPIWorld(context, recorder)
    options = Options.of(context.config)
    strategy = HookedDDPStrategy(
        recorder,
        CompressedAllReduce(context.config, MPIGroup).hook if options.compresses else MPIAllReduce().hook,
        parallel_devices=[setup.root_device(context)] * context.world_size,
        cluster_environment=cluster_environment(),
        process_group_backend="gloo",
        bucket_cap_mb=options.bucket_mb,
        find_unused=options.find_unused_parameters,
        exchange_bytes=None if options.compresses else 0,
    )
    fit_copies(without_momentum(context), recorder, strategy)
    world.leave()
    recorder.save()

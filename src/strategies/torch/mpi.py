"""Data parallelism by MPI: a copy a rank, gradients averaged by mpi4py's all-reduce during backward.

Ranks are `mpiexec`'s. DistributedDataParallel flattens the gradients into buckets; each is handed to MPI as
soon as backward has filled it (`Iallreduce`), and the step waits for all of them after the last one. How much
moves in the meantime is up to the library: MPICH and Open MPI make progress inside MPI calls alone, and there
is one at each bucket. DDP sends rank 0's parameters at the start; that and Lightning's agreements between the
ranks (when to stop, the evaluations' sums) go through a gloo process group.
"""

# No `from __future__ import annotations` here: DDP looks at a hook's annotations and wants classes.

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

from src.measure.recorder import Recorder
from src.runtime.mpi import World, wait
from src.runtime.torch import data_parallel
from src.runtime.torch import training as runtime
from src.worker import Run


class AllReduce:
    """A DDP communication hook over MPI; its state is the recorder, told of waits and payload."""

    def __init__(self) -> None:
        self._pending: list[tuple[MPI.Request, Tensor, Tensor, torch.futures.Future[Tensor]]] = []

    def hook(self, recorder: Recorder, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Begins to average one bucket over all ranks; the last one of a step waits for all."""
        gradients = bucket.buffer()
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        with recorder.exchanging():
            # MPI reads and writes host memory: of a CPU's gradients these are the bucket itself.
            host = gradients.div_(MPI.COMM_WORLD.size).cpu()
            request = MPI.COMM_WORLD.Iallreduce(MPI.IN_PLACE, host.numpy())
            self._pending.append((request, host, gradients, future))
            if bucket.is_last():
                self._finish()
            else:
                MPI.Request.Testall([request for request, *_ in self._pending])
        recorder.payload_bytes += gradients.nbytes
        return future

    def _finish(self) -> None:
        wait([request for request, *_ in self._pending])
        for _, host, gradients, future in self._pending:
            future.set_result(gradients if host is gradients else gradients.copy_(host))
        self._pending.clear()


def train(run: Run, recorder: Recorder) -> None:
    """Trains this rank's copy on its shard of every batch."""
    world = World(run, recorder)
    strategy = data_parallel.HookedDDPStrategy(
        recorder,
        AllReduce().hook,
        parallel_devices=[runtime.root_device(run)] * run.world_size,
        cluster_environment=runtime.environment(),
        process_group_backend="gloo",
        bucket_cap_mb=run.config.strategy["bucket_mb"],
    )
    data_parallel.fit(run, recorder, strategy)
    world.leave()
    recorder.save()

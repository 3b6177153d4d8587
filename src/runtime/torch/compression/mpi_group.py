"""Give torch's communication hooks MPI's ranks as a process group.

A call ends when its exchange has: MPI makes progress within MPI calls alone, so that a step that goes on
meanwhile would gain little. MPI has no half precision; such numbers travel as whole ones, and are added up by
a function of this module.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

from src.compat.torch import completed_work
from src.measure.recorder import Recorder
from src.runtime.common.mpi_world import MPI_GROUP, wait

HALVES = (torch.float16, torch.bfloat16)


def _adding(dtype: torch.dtype) -> MPI.Op:
    """Return the operation that adds numbers of half precision."""

    def add(values: Any, into: Any, _: MPI.Datatype) -> None:
        torch.frombuffer(into, dtype=dtype).add_(torch.frombuffer(values, dtype=dtype))

    return MPI.Op.Create(add, commute=True)


class MPIGroup(dist.ProcessGroup):
    """All ranks of an MPI job; what is sent is a rank's payload, and the time until all have it its wait."""

    def __init__(self, recorder: Recorder) -> None:
        """Count into `recorder`."""
        # torch's stubs know only its own classes' arguments.
        super().__init__(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)  # type: ignore[call-arg]
        self._recorder = recorder
        self._sums = {dtype: _adding(dtype) for dtype in HALVES}

    def allreduce(  # type: ignore[override]
        self, tensors: list[Tensor], options: Any
    ) -> dist.Work:
        """Sum each of `tensors` over all ranks, in place; they are summed when this returns."""
        for tensor in tensors:
            with self._recorder.exchanging("all_reduce", group=MPI_GROUP, size=tensor.nbytes):
                # MPI reads and writes host memory, which of a tensor on a CPU is its own.
                host = tensor.cpu()
                numbers = host.view(torch.int16) if host.dtype in HALVES else host
                operation = self._sums.get(host.dtype, MPI.SUM)
                wait([MPI.COMM_WORLD.Iallreduce(MPI.IN_PLACE, numbers.numpy(), operation)])
                if host is not tensor:
                    tensor.copy_(host)
            self._recorder.hand_over("all_reduce", tensor.nbytes)
        return completed_work(tensors)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any
    ) -> dist.Work:
        """Gather all ranks' `inputs` in `outputs`, for each input a list by rank."""
        for gathered, own in zip(outputs, inputs, strict=True):
            with self._recorder.exchanging("all_gather", group=MPI_GROUP, size=own.nbytes):
                host = own.cpu()
                rows = torch.empty((self.size(), *host.shape), dtype=host.dtype)
                wait([MPI.COMM_WORLD.Iallgather(host.numpy(), rows.numpy())])
                for output, row in zip(gathered, rows, strict=True):
                    output.copy_(row)
            self._recorder.hand_over("all_gather", own.nbytes)
        return completed_work([tensor for gathered in outputs for tensor in gathered])

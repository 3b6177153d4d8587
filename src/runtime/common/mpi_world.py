"""Exchange arrays in host memory among ranks by MPI, for any framework."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

from src.config import ConfigError
from src.machine import quota
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext

# The group of MPI's exchanges in a trace: all ranks, by MPI.
MPI_GROUP = "MPI"


def wait(requests: Sequence[MPI.Request]) -> None:
    """Wait until all requests are done, with a pause between polls, which MPI's own wait doesn't have."""
    while not MPI.Request.Testall(requests):
        quota.give_way()


class MPIWorld:
    """All ranks of an MPI job. Every rank calls each method, in the same order.

    A waiting rank polls, so its core is busy: that is why utilization is labelled "occupancy, spin included".

    Attributes:
        size: number of ranks.
    """

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        """Join the ranks' MPI job.

        Raises:
            ConfigError: if mpiexec and the library that mpi4py loaded belong to different MPIs.
        """
        self._all = MPI.COMM_WORLD
        self._recorder = recorder
        self.size: int = self._all.size
        if (self._all.rank, self.size) != (context.rank, context.world_size):
            mpiexec = context.config.strategy.get("mpiexec")
            raise ConfigError(
                f"strategy.mpiexec={mpiexec}: started {context.world_size} ranks, of which mpi4py sees "
                f"{self.size}: its library, {MPI.Get_library_version().split()[0]}, is not that mpiexec's; "
                "name the mpiexec of that library, or let MPI4PY_LIBMPI name the library"
            )
        self._unlink_shared_memory()

    def _unlink_shared_memory(self) -> None:
        """Unlink MPICH's shared memory segments once all ranks have mapped them.

        The kernel then frees a segment with the last rank, however the ranks end. MPICH unlinks segments in
        `Finalize` only, so those of a killed rank would stay in memory.
        """
        mapped = Path("/proc/self/maps")
        lines = mapped.read_text() if mapped.exists() else ""
        segments = set(re.findall(r"/dev/shm/mpich_shm_\w+$", lines, re.MULTILINE))
        self._all.Barrier()
        for segment in segments:
            Path(segment).unlink(missing_ok=True)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of all ranks' `values`, element by element: the same bits on every rank."""
        total = np.empty_like(values)
        wait([self._all.Iallreduce(values, total, MPI.SUM)])
        return total

    def sum_for_training(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of all ranks' `values`, and record this rank's waiting and payload."""
        with self._recorder.exchanging("all_reduce", group=MPI_GROUP, size=values.nbytes):
            total = self.sum(values)
        self._recorder.hand_over("all_reduce", values.nbytes)
        return total

    def broadcast(self, values: np.ndarray) -> np.ndarray:
        """Return rank 0's `values`; every rank gives an array of the same shape and type."""
        copy = np.array(values)
        self._all.Bcast(copy, root=0)
        return copy

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        self._all.Barrier()

    def leave(self) -> None:
        """Finalize MPI at the end of a training: `mpiexec` takes a rank that ends without that as failed.

        The mean of the ranks' training times becomes rank 0's fact `mean_rank_train_seconds`. Paper 2 takes
        such a mean by `reduce` too, but its program divides the sum by the rank's own number: at one rank by
        0, and at two it gives the sum itself. Here the sum is divided by the number of ranks.
        """
        total = self._all.reduce(self._recorder.train_seconds, MPI.SUM, root=0)
        if total is not None:
            self._recorder.facts["mean_rank_train_seconds"] = total / self.size
        MPI.Finalize()

"""The ranks of a run as MPI knows them: sums and rank 0's values, in host memory, of any framework."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

from src.config import ConfigError
from src.launch import quota
from src.measure.recorder import Recorder
from src.worker import Run


def wait(requests: Sequence[MPI.Request]) -> None:
    """Until all are done; MPI itself polls without a pause."""
    while not MPI.Request.Testall(requests):
        quota.give_way()


class World:
    """All ranks; each method is called by every one of them, in the same order.

    A waiting rank polls: its core is busy, which is why utilization is labelled "occupancy, spin included".
    """

    def __init__(self, run: Run, recorder: Recorder) -> None:
        """Raises `ConfigError` if mpiexec and the library that mpi4py found aren't of one MPI."""
        self._all = MPI.COMM_WORLD
        self._recorder = recorder
        self.size: int = self._all.size
        if (self._all.rank, self.size) != (run.rank, run.world_size):
            raise ConfigError(
                f"strategy.mpiexec={run.config.strategy.get('mpiexec')}: started {run.world_size} ranks, of "
                f"which mpi4py sees {self.size}: its library, {MPI.Get_library_version().split()[0]}, is not "
                "that mpiexec's; name the mpiexec of that library, or let MPI4PY_LIBMPI name the library"
            )
        self._unlink_shared_memory()

    def _unlink_shared_memory(self) -> None:
        """Takes the name of MPICH's segment away, once all ranks have mapped it: it is freed with the last of
        them, however they end. MPICH does so in `Finalize` only, and a killed rank's would stay in memory.
        """
        mapped = Path("/proc/self/maps")
        lines = mapped.read_text() if mapped.exists() else ""
        segments = set(re.findall(r"/dev/shm/mpich_shm_\w+$", lines, re.MULTILINE))
        self._all.Barrier()
        for segment in segments:
            Path(segment).unlink(missing_ok=True)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The ranks' sum, element by element: the same bits for all of them."""
        total = np.empty_like(values)
        wait([self._all.Iallreduce(values, total, MPI.SUM)])
        return total

    def sum_for_training(self, values: np.ndarray) -> np.ndarray:
        """`sum`, with the rank's waiting and the bytes that it hands to MPI recorded."""
        with self._recorder.exchanging():
            total = self.sum(values)
        self._recorder.payload_bytes += values.nbytes
        return total

    def of_first(self, values: np.ndarray) -> np.ndarray:
        """Rank 0's."""
        given = np.array(values)
        self._all.Bcast(given, root=0)
        return given

    def meet(self) -> None:
        """Returns once all ranks have called it."""
        self._all.Barrier()

    def leave(self) -> None:
        """At the end of a training; `mpiexec` takes a rank that ends without it for one that has failed.

        The mean of the ranks' training times, which paper 2 takes by `reduce` too, becomes rank 0's fact
        `mean_rank_train_seconds`. Paper 2's program divides the sum by the rank's own number: at one rank by
        0, and at two it gives the sum itself. This is the sum over the number of ranks.
        """
        total = self._all.reduce(self._recorder.train_seconds, MPI.SUM, root=0)
        if total is not None:
            self._recorder.facts["mean_rank_train_seconds"] = total / self.size
        MPI.Finalize()

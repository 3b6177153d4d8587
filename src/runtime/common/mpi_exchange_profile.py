"""Measure the exchanges of MPI: all-reduce, broadcast, send and receive of host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from mpi4py import MPI

from src.measure.recorder import Recorder
from src.runtime.common import exchange_profile
from src.runtime.common.context import RankContext
from src.runtime.common.mpi_world import MPIWorld, wait


class MPIBackend:
    """MPI's ranks, which wait as the strategies do."""

    name, sends = "mpi", True

    def __init__(self, rank: int, hosts: Sequence[str]) -> None:
        self.rank, self.hosts = rank, hosts

    def make(self, size: int) -> np.ndarray:
        """Make an array of `size` bytes."""
        return np.zeros(size // 4, np.float32)

    def barrier(self) -> None:
        """Wait for all ranks."""
        wait([MPI.COMM_WORLD.Ibarrier()])

    def operations(self) -> Mapping[str, tuple[Callable[[np.ndarray], None], int]]:
        """Return all-reduce, and broadcasts from the first rank and from the last one, to and fro."""

        def all_reduce(array: np.ndarray) -> None:
            wait([MPI.COMM_WORLD.Iallreduce(MPI.IN_PLACE, array)])

        def broadcast(array: np.ndarray) -> None:
            for root in (0, len(self.hosts) - 1):
                wait([MPI.COMM_WORLD.Ibcast(array, root)])

        return {"all_reduce": (all_reduce, 1), "broadcast": (broadcast, 2)}

    def send(self, buffer: np.ndarray, to: int) -> None:
        """Send an array."""
        wait([MPI.COMM_WORLD.Isend(buffer, to)])

    def receive(self, buffer: np.ndarray, sender: int) -> None:
        """Receive an array."""
        wait([MPI.COMM_WORLD.Irecv(buffer, sender)])


def train(context: RankContext, recorder: Recorder) -> None:
    """Measure, in the place of a training."""
    world = MPIWorld(context, recorder)
    backend = MPIBackend(context.rank, exchange_profile.worker_hosts(context))
    exchange_profile.run(context, recorder, backend)
    world.leave()
    recorder.save()

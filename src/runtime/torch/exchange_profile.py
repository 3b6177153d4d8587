"""Measure the exchanges of torch's process group: all-reduce, broadcast, send and receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from src.measure.recorder import Recorder
from src.runtime.common import exchange_profile
from src.runtime.common.context import RankContext
from src.runtime.torch import process_group, setup
from src.runtime.torch.shared_all_reduce import SUPPORTED, SharedAllReduce


class ProcessGroupBackend:
    """The backend of the ranks' process group: gloo on CPUs, NCCL on GPUs."""

    sends = True

    def __init__(self, name: str, rank: int, hosts: Sequence[str], device: torch.device) -> None:
        self.name, self.rank, self.hosts = name, rank, hosts
        self._device = device

    def make(self, size: int) -> Tensor:
        """Make a tensor of `size` bytes."""
        return torch.zeros(size // 4, dtype=torch.float32, device=self._device)

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()
        self._settle()

    def operations(self) -> Mapping[str, tuple[Callable[[Tensor], None], int]]:
        """Return all-reduce, and broadcasts from the first rank and from the last one, to and fro."""

        def all_reduce(tensor: Tensor) -> None:
            dist.all_reduce(tensor)
            self._settle()

        def broadcast(tensor: Tensor) -> None:
            for source in (0, len(self.hosts) - 1):
                dist.broadcast(tensor, src=source)
                self._settle()

        return {"all_reduce": (all_reduce, 1), "broadcast": (broadcast, 2)}

    def send(self, buffer: Tensor, to: int) -> None:
        """Send a tensor."""
        dist.send(buffer, to)
        self._settle()

    def receive(self, buffer: Tensor, sender: int) -> None:
        """Receive a tensor."""
        dist.recv(buffer, sender)
        self._settle()

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def train(context: RankContext, recorder: Recorder) -> None:
    """Measure, in the place of a training."""
    device = setup.root_device(context)
    name = setup.process_group_backend(context)
    process_group.join(context, name)
    backend = ProcessGroupBackend(name, context.rank, exchange_profile.worker_hosts(context), device)
    exchange_profile.run(context, recorder, backend)


class EveryExchange(ProcessGroupBackend):
    """The backend with all kinds of exchange that strategies make, each by the bytes of a whole tensor."""

    sends = True

    def __init__(
        self, name: str, rank: int, hosts: Sequence[str], device: torch.device, shared: bool
    ) -> None:
        super().__init__(name, rank, hosts, device)
        self._shared = SharedAllReduce(lambda _: None) if shared else None

    def operations(self) -> Mapping[str, tuple[Callable[[Tensor], None], int]]:
        """Return all-reduce, by shared memory too where there is some, all-gather and reduce-scatter."""
        ranks = len(self.hosts)

        def part(tensor: Tensor) -> Tensor:
            return tensor[: len(tensor) // ranks]

        def all_gather(tensor: Tensor) -> None:
            dist.all_gather_into_tensor(tensor[: len(part(tensor)) * ranks], part(tensor).clone())
            self._settle()

        def reduce_scatter(tensor: Tensor) -> None:
            dist.reduce_scatter_tensor(part(tensor).clone(), tensor[: len(part(tensor)) * ranks])
            self._settle()

        found = {
            "all_reduce": super().operations()["all_reduce"],
            "all_gather": (all_gather, 1),
            "reduce_scatter": (reduce_scatter, 1),
        }
        if self._shared is not None:
            found["all_reduce_in_shared_memory"] = (self._shared.average, 1)
        return found


def train_every(context: RankContext, recorder: Recorder) -> None:
    """Measure all kinds of exchange, in the place of a training."""
    device = setup.root_device(context)
    name = setup.process_group_backend(context)
    process_group.join(context, name)
    shared = device.type == "cpu" and SUPPORTED and not context.config.across_hosts
    hosts = exchange_profile.worker_hosts(context)
    exchange_profile.run(context, recorder, EveryExchange(name, context.rank, hosts, device, shared))

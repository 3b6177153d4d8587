"""Send and receive the tensors of stages; through the host's memory where a backend reads no other.

NCCL connects no two ranks that share a GPU, and gloo, which does, sends and receives nothing but tensors in
the host's memory (its collectives copy tensors themselves).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
import torch.distributed as dist
from torch import Tensor


def stages_through_host(device: torch.device) -> bool:
    """Return whether this rank's tensors on `device` must be copied to the host to be sent."""
    return device.type != "cpu" and dist.get_backend() == "gloo"


def isend(tensor: Tensor, to: int, group: dist.ProcessGroup | None = None) -> tuple[dist.Work, Tensor]:
    """Begin to send `tensor` to rank `to`; return the work, and what must be kept until that is done."""
    if stages_through_host(tensor.device):
        tensor = _host_copy(tensor)
    work = dist.isend(tensor, to, group=group)
    assert work is not None, "this rank isn't in the group"
    return work, tensor


def irecv(tensor: Tensor, source: int, group: dist.ProcessGroup | None = None) -> Callable[[], None]:
    """Begin to receive from rank `source` into `tensor`; return what waits for that."""
    staged = stages_through_host(tensor.device)
    host = _host_buffer(tensor) if staged else tensor.detach()
    work = dist.irecv(host, source, group=group)
    assert work is not None, "this rank isn't in the group"

    def wait() -> None:
        work.wait()
        if staged:
            tensor.detach().copy_(host)

    return wait


def recv(tensor: Tensor, source: int) -> None:
    """Receive from rank `source` into `tensor`, and wait for that."""
    irecv(tensor, source)()


class HostStaging:
    """A stage's transfers by way of the host's memory, each known by a key of the caller's."""

    def __init__(self) -> None:
        # By key: tensors of the stage, and those of the host that are received in their place.
        self._received: dict[Hashable, list[tuple[Tensor, Tensor]]] = {}

    def send(self, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        """Let operations that send a device's tensors send copies on the host."""
        for operation in operations:
            operation.tensor = _host_copy(operation.tensor)
        return operations

    def receive(self, operations: list[dist.P2POp], key: Hashable) -> list[dist.P2POp]:
        """Let operations receive on the host; once they are done `arrive` needs their key."""
        pairs = [(operation.tensor, _host_buffer(operation.tensor)) for operation in operations]
        for operation, (_, host) in zip(operations, pairs, strict=True):
            operation.tensor = host
        self._received[key] = pairs
        return operations

    @torch.no_grad()
    def arrive(self, key: Hashable) -> None:
        """Copy what was received under a key to the stage's own tensors."""
        for tensor, host in self._received.pop(key, ()):
            tensor.copy_(host)


def _host_buffer(tensor: Tensor) -> Tensor:
    """Return an empty tensor on the host like `tensor`, which a GPU copies to and from without a detour."""
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda, requires_grad=False)


def _host_copy(tensor: Tensor) -> Tensor:
    return _host_buffer(tensor).copy_(tensor.detach())

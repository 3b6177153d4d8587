"""Average gradients between the CPU ranks of one host through shared memory.

gloo would send them over loopback TCP, where on two cloud cores of 2026 45 MB cost 75 ms of a 260 ms step.
Here each rank copies its bucket, block by block, into a small ring of slots that all ranks map, and adds up
the blocks of all ranks there. A block is added while it is still in the cache, so that the gradients
themselves cross main memory once:

    rank 0    put 0   put 1   add 0   put 2   add 1   ...
    rank 1    put 0   put 1   add 0   put 2   add 1   ...        put b waits until all have added b - RING

Every rank adds in rank order, so that all ranks hold the same bits.
"""

# No `from __future__ import annotations` here: DDP looks at a hook's annotations and wants classes.

import math
import os
import platform
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from src.compat.alike_ranks import others_are_there
from src.compat.live_tensors import exchanged
from src.machine import quota
from src.measure.recorder import Recorder

# A flag in shared memory says that a block is complete only where stores are seen in program order.
# `conf/strategy/ddp.yaml` says the same, for those who ask for it.
SUPPORTED = platform.machine() == "x86_64"
SHARED_MEMORY = "shared memory"
BLOCK_BYTES = 2 * 1024 * 1024
RING = 8


class SharedAllReduce:
    """An average over the ranks of one host in shared memory, which `hook` offers to DDP.

    The hook's state, as DDP calls it, is the rank's recorder, to which it adds waits and payload. Where there
    can't be shared memory, the process group averages.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        """Prepare to average; `note` is called with a sentence where there is no shared memory."""
        self._note = note
        self._world = 0
        self._block = 0
        self._slots: Tensor | None = None

    def hook(self, recorder: Recorder, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Average one bucket of gradients over all ranks; return a future with the averaged gradients."""
        gradients = bucket.buffer()
        with recorder.exchanging(self.kind, group=SHARED_MEMORY, size=gradients.nbytes):
            self.average(gradients)
        recorder.hand_over("all_reduce", gradients.nbytes)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(gradients)
        return future

    @staticmethod
    def ring_bytes(world: int) -> int:
        """Return the bytes of the slots of so many ranks, which have them in common."""
        return RING * world * BLOCK_BYTES if world > 1 else 0

    def buffers(self) -> tuple[Tensor, ...]:
        """Return the slots, if there are any."""
        return () if self._slots is None else (self._slots,)

    @property
    def kind(self) -> str | None:
        """Return what an average is called in a trace; `None` where the process group's own events tell."""
        return None if self._slots is None else "all_reduce"

    def average(self, gradients: Tensor) -> None:
        """Replace `gradients` [elements] by their mean over all ranks, in place.

        Every rank calls this method, in the same order. It waits for the other ranks' gradients.
        """
        if not self._world:
            self._open()
        if self._world == 1:
            return
        if not others_are_there():
            dist.all_reduce(gradients, dist.ReduceOp.AVG)
            return
        if self._slots is None:
            dist.all_reduce(gradients.div_(self._world))
            return
        parts = gradients.split(BLOCK_BYTES // gradients.element_size())
        self._put(parts[0])
        for current, following in zip(parts, [*parts[1:], None], strict=True):
            if following is not None:
                self._put(following, ahead=1)
            self._add(current)

    def _put(self, part: Tensor, ahead: int = 0) -> None:
        """Write `part` over the number of ranks into this rank's slot, once all have added the old block."""
        block = self._block + ahead
        while self._added.min() < block - RING + 1:
            quota.give_way()
        torch.mul(part, 1 / self._world, out=self._slot(block, self._rank, part))
        self._ready[self._rank] = block + 1

    def _add(self, part: Tensor) -> None:
        """Write the sum of all ranks' slots into `part`, once all ranks have written their slots."""
        block = self._block
        while self._ready.min() < block + 1:
            quota.give_way()
        torch.add(self._slot(block, 0, part), self._slot(block, 1, part), out=part)
        for rank in range(2, self._world):
            part.add_(self._slot(block, rank, part))
        self._added[self._rank] = block + 1
        self._block += 1

    def _slot(self, block: int, rank: int, part: Tensor) -> Tensor:
        assert self._slots is not None
        return self._slots[block % RING, rank].view(part.dtype)[: len(part)]

    def _open(self) -> None:
        """Map the slots and counters in every rank, or in none.

        The memory has no name, but that of rank 0's descriptor, and isn't bound by the size of /dev/shm,
        which is 64 MB in many containers. The kernel frees it with the last rank, however the ranks end.
        """
        self._world, self._rank = dist.get_world_size(), dist.get_rank()
        if self._world == 1 or not others_are_there():
            return
        ring_bytes = self.ring_bytes(self._world)
        # A cache line for each counter: ranks don't invalidate each other's.
        counters = (2, self._world, 8)
        whole = ring_bytes + 8 * math.prod(counters)
        file, path, reason = _make_memory(whole) if self._rank == 0 else (None, "", "")
        found = [path, reason]
        dist.broadcast_object_list(found, src=0)
        memory = _map_memory(found[0], whole)
        is_mapped = torch.tensor(int(memory is not None))
        # Until all ranks have mapped it rank 0 keeps its descriptor.
        dist.all_reduce(is_mapped, dist.ReduceOp.MIN)
        if file is not None:
            os.close(file)
        if memory is None or not is_mapped:
            if self._rank == 0:
                why = found[1] or "a rank can't map it"
                self._note(f"no shared memory ({why}): the ranks average by {dist.get_backend()}")
            return
        shared = memory[ring_bytes:].view(np.int64).reshape(counters)
        self._ready, self._added = shared[0, :, 0], shared[1, :, 0]
        slots = torch.from_numpy(memory[:ring_bytes])
        self._slots = slots.view(RING, self._world, BLOCK_BYTES)
        exchanged(self._slots)


def _make_memory(size: int) -> tuple[int | None, str, str]:
    """Make memory of `size` bytes; return its descriptor, path, and the reason where there is none."""
    try:
        file = os.memfd_create("scaleguide")
    except OSError as error:
        return None, "", str(error.strerror)
    try:
        # Without room the first write to it would kill a rank.
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        os.close(file)
        return None, "", str(error.strerror)
    return file, f"/proc/{os.getpid()}/fd/{file}", ""


def _map_memory(path: str, size: int) -> np.ndarray | None:
    """Return the memory [bytes] at a path, `None` where there is none or this process may not map it."""
    try:
        return np.memmap(path, np.uint8, "r+", shape=size) if path else None
    except OSError:
        return None

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

import os
import platform
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from src.machine import quota
from src.measure.recorder import Recorder

# A flag in shared memory says that a block is complete only where stores are seen in program order.
SUPPORTED = platform.machine() in ("x86_64", "AMD64")
BLOCK_BYTES = 2 * 1024 * 1024
RING = 8


class SharedAllReduce:
    """An average over the ranks of one host in shared memory, which `hook` offers to DDP.

    The hook's state, as DDP calls it, is the rank's recorder, to which it adds waits and payload.
    """

    def __init__(self) -> None:
        self._world = 0
        self._block = 0

    def hook(self, recorder: Recorder, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Average one bucket of gradients over all ranks; return a future with the averaged gradients."""
        gradients = bucket.buffer()
        with recorder.exchanging():
            self.average(gradients)
        recorder.payload_bytes += gradients.nbytes
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(gradients)
        return future

    def average(self, gradients: Tensor) -> None:
        """Replace `gradients` [elements] by their mean over all ranks, in place.

        Every rank calls this method, in the same order. It waits for the other ranks' gradients.
        """
        if not self._world:
            self._open()
        if self._world == 1:
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
        return self._slots[block % RING, rank].view(part.dtype)[: len(part)]

    def _open(self) -> None:
        """Map the slots and counters, and unlink their file once all ranks have mapped it.

        The kernel then frees the memory with the last rank, however the ranks end.
        """
        self._world, self._rank = dist.get_world_size(), dist.get_rank()
        if self._world == 1:
            return
        size = RING * self._world * BLOCK_BYTES
        names = [""]
        if self._rank == 0:
            folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
            handle, names[0] = tempfile.mkstemp(prefix="scaleguide-", dir=folder)
            os.truncate(handle, size + 2 * self._world * 64)
            os.close(handle)
        dist.broadcast_object_list(names, src=0)
        shared = torch.from_file(names[0], shared=True, size=size, dtype=torch.uint8)
        self._slots = shared.view(RING, self._world, BLOCK_BYTES)
        # A cache line for each counter: ranks don't invalidate each other's.
        shape = (2, self._world, 8)
        counters = np.memmap(names[0], np.int64, "r+", offset=size, shape=shape)
        self._ready, self._added = counters[0, :, 0], counters[1, :, 0]
        dist.barrier()
        if self._rank == 0:
            os.unlink(names[0])

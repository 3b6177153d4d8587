"""One rank that averages tensors of many sizes through shared memory, and checks every result.

python -m tests.runtime.torch.all_reduce_rank [RANK]      with a launcher's environment variables

RANK can't have shared memory.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist

from src.runtime.torch.shared_all_reduce import BLOCK_BYTES, RING, SharedAllReduce
from tests.runtime.torch.agreed import leave


def check(average: SharedAllReduce, size: int, dtype: torch.dtype, seed: int) -> None:
    """The mean as gloo computes it, with the same bits on every rank."""
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    values = torch.randn(size, generator=generator, dtype=dtype)
    expected = values.clone()
    dist.all_reduce(expected)
    expected /= dist.get_world_size()
    average.average(values)
    torch.testing.assert_close(values, expected, msg=lambda text: f"{size} x {dtype}: {text}")
    first = values.clone()
    dist.broadcast(first, src=0)
    assert torch.equal(values, first), f"{size} x {dtype}: ranks hold different bits"


def no_room(*arguments: object, **options: object) -> NoReturn:
    """As the system answers it."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def main() -> None:
    dist.init_process_group("gloo")
    # Where there is no memory for rank 0, or where another rank may not map it.
    failing = sys.argv[1:] == [str(dist.get_rank())]
    if failing and dist.get_rank() == 0:
        os.posix_fallocate = no_room
    elif failing:
        np.memmap = no_room
    failing = len(sys.argv) > 1
    average = SharedAllReduce(print)
    seeds = itertools.count()
    for dtype in (torch.float32, torch.float64):
        block = BLOCK_BYTES // dtype.itemsize
        # Less than a block, whole ones, one element more or less, and several times round the ring.
        for size in (1, 7, block - 1, block, block + 1, 3 * block + 5, RING * block, 2 * RING * block + 3):
            check(average, size, dtype, next(seeds))
    for _ in range(300):
        check(average, 1 + 37 * (next(seeds) % 11), torch.float32, next(seeds))
    # Another instance, as the next training of this process would make, while the first one lives.
    check(SharedAllReduce(print), 1000, torch.float32, next(seeds))
    check(average, 1000, torch.float32, next(seeds))
    maps = Path("/proc/self/maps").read_text()
    expected = dist.get_world_size() > 1 and not failing
    assert ("/memfd:scaleguide (deleted)" in maps) == expected, maps
    leave()


if __name__ == "__main__":
    main()

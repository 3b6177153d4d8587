"""One rank that averages tensors of many sizes through shared memory, and checks every result.

python -m tests.runtime.torch.all_reduce_rank      with a launcher's environment variables
"""

from __future__ import annotations

import itertools
from pathlib import Path

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


def main() -> None:
    dist.init_process_group("gloo")
    average = SharedAllReduce()
    seeds = itertools.count()
    for dtype in (torch.float32, torch.float64):
        block = BLOCK_BYTES // dtype.itemsize
        # Less than a block, whole ones, one element more or less, and several times round the ring.
        for size in (1, 7, block - 1, block, block + 1, 3 * block + 5, RING * block, 2 * RING * block + 3):
            check(average, size, dtype, next(seeds))
    for _ in range(300):
        check(average, 1 + 37 * (next(seeds) % 11), torch.float32, next(seeds))
    # Another instance, as the next training of this process would make, while the first one lives.
    check(SharedAllReduce(), 1000, torch.float32, next(seeds))
    check(average, 1000, torch.float32, next(seeds))
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "scaleguide-" in line]
    if dist.get_world_size() > 1:
        assert mapped, "no shared memory is in use"
    assert all(line.endswith("(deleted)") for line in mapped), f"a file is left: {mapped}"
    leave()


if __name__ == "__main__":
    main()

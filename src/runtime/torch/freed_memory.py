"""Have glibc return freed memory to the kernel, in ranks that are to save it.

Other ranks keep it, which spares faults (`src/launch/spawn.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from torch import nn

# Options of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
SMALL = 2**20
# Bounds of what a step keeps; glibc takes no more than 32 MiB.
LEAST_KEPT, MOST_KEPT = 2**22, 2**25
PAGE = 4096


def return_blocks(least: int = SMALL) -> None:
    """Return freed blocks of `least` bytes at once, and of smaller ones what is free at the heap's end."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, least)
    libc.mallopt(M_TRIM_THRESHOLD, 2**26)


def block_of_a_step(model: nn.Module) -> int:
    """Return the bytes of blocks that a step frees for good: more than the largest parameter, within bounds.

    Blocks of a parameter or an activation are needed at each step. Those of a gathered group would leave
    holes between activations, which came to more than half of a transformer's state.
    """
    largest = max(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return min(max(LEAST_KEPT, largest + PAGE), MOST_KEPT)


@contextlib.contextmanager
def all_returned(usual: int) -> Iterator[None]:
    """Return small blocks, too, of what is done once, and those of `usual` bytes afterwards.

    The tensors of a checkpoint, gathered one by one, would leave holes of half their size.
    """
    return_blocks()
    try:
        yield
    finally:
        return_blocks(usual)

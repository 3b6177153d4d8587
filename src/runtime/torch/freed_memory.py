"""Have glibc return freed memory to the kernel, in ranks that are to save it.

Other ranks keep it, which spares faults (`src/launch/spawn.py`).
"""

from __future__ import annotations

import ctypes

# Options of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def return_blocks() -> None:
    """Return freed blocks of 2 MiB at once, and of smaller ones what is free at the heap's end.

    Gathered parameters come and go between activations that stay, and kept ones would leave holes there:
    ResNet-101 on two ranks had 1.3 times the peak. Blocks from that size on have huge pages
    (`src/launch/torch_ranks.py`), which cost fewer faults.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 2**21)
    libc.mallopt(M_TRIM_THRESHOLD, 2**26)

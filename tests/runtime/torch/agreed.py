"""How ranks that check something among themselves end."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist


def leave() -> None:
    """Says that all is well, and ends the process once the others have come to that, too."""
    print("agreed", flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)

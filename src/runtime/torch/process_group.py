"""Form torch's process group without a port: the ranks find each other through a file of the run's directory.

torch's own way, a TCPStore, listens on every interface, whatever address it is given, and lets anybody set
keys.
"""

from __future__ import annotations

import os

import torch.distributed as dist

from src.run import files, variables
from src.runtime.common.context import RankContext


def join(context: RankContext, backend: str) -> None:
    """Join the process group of all ranks, unless this process has one already.

    Collective: every rank calls it, and waits for the others. Ranks that were started without the parent find
    each other by torchrun's variables.

    Args:
        context: the rank's context.
        backend: torch's name of the group's backend, as `gloo`.
    """
    if dist.is_initialized():
        return
    name = os.environ.get(variables.STORE)
    path = None if name is None else str(context.folder / files.RANKS / name)
    store = None if path is None else dist.FileStore(path, context.world_size)
    dist.init_process_group(backend, rank=context.rank, world_size=context.world_size, store=store)

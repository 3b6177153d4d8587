"""Form torch's process group: ranks of one machine find each other through a file of the run's directory.

torch's own way, a TCPStore, lets anybody set keys, and listens on every interface whatever address it is
given, unless it is given a socket. Ranks of several machines, which share no files, have one that listens at
rank 0's address alone.
"""

from __future__ import annotations

import itertools
import os
import socket

import torch.distributed as dist

from src.run import files, variables
from src.runtime.common.context import RankContext

# How often this process has joined a group: all ranks do so as often.
_joins = itertools.count()


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
    store = _store(context, next(_joins))
    dist.init_process_group(backend, rank=context.rank, world_size=context.world_size, store=store)


def _store(context: RankContext, number: int) -> dist.Store | None:
    """Return the store through which the ranks find each other, `None` for torchrun's.

    torch names groups from the beginning once the first one is gone: in one file a rank that joins again
    would find where the others were.
    """
    if (name := os.environ.get(variables.STORE)) is not None:
        name = f"{name}-{number}" if number else name
        return dist.FileStore(str(context.folder / files.RANKS / name), context.world_size)
    if variables.PARENT not in os.environ:
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if context.rank:
        return dist.TCPStore(address, port, context.world_size)
    listening = socket.create_server((address, port))
    return dist.TCPStore(
        address, port, context.world_size, is_master=True, master_listen_fd=listening.detach()
    )

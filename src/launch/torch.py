"""Ranks that find each other through torchrun's environment variables, all on this host."""

from __future__ import annotations

import socket

from src.config import Config
from src.launch import place
from src.launch.place import Place


def places(config: Config) -> list[Place]:
    """The processes to start, with the environment that torchrun would give them."""
    return [
        place.of_rank(rank, config.workers, (rank,), told) for rank, told in enumerate(environments(config))
    ]


def environments(config: Config) -> list[dict[str, str]]:
    """What each rank is told of the others, as torchrun would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        {
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(config.workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            # Lightning recognises externally started ranks by this one.
            "TORCHELASTIC_RUN_ID": "scaleguide",
        }
        for rank in range(config.workers)
    ]

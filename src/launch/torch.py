"""Ranks that find each other through torchrun's environment variables, all on this host."""

from __future__ import annotations

import socket

from src.config import Config


def environments(config: Config) -> list[dict[str, str]]:
    """One set of environment variables a rank, as torchrun would set them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(config.workers),
            "LOCAL_WORLD_SIZE": str(config.workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            # Lightning recognises externally started ranks by this one.
            "TORCHELASTIC_RUN_ID": "scaleguide",
        }
        for rank in range(config.workers)
    ]

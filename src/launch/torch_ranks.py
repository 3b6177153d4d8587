"""Launch ranks that find each other through torchrun's environment variables, all on this host."""

from __future__ import annotations

import secrets
import socket

from src.config import Config
from src.launch.launcher import LocalLauncher
from src.launch.process_spec import ProcessSpec, rank_spec
from src.run.variables import STORE

# The backends' own connections stay on this host.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class TorchRanks(LocalLauncher):
    """A launcher of one process a worker, with the environment variables that torchrun would set."""

    def process_specs(self, config: Config) -> list[ProcessSpec]:
        """Return a rank for each worker."""
        return [
            rank_spec(rank, config.workers, (rank,), environment)
            for rank, environment in enumerate(rendezvous_environments(config))
        ]


def rendezvous_environments(config: Config) -> list[dict[str, str]]:
    """Return, by rank, the variables through which the ranks form their process group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # A job that is started again must not find what the ranks before it have left.
    store = f"store-{secrets.token_hex(8)}"
    return [
        {
            STORE: store,
            **LOOPBACK,
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(config.workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            # Lightning recognises externally started ranks by this one.
            "TORCHELASTIC_RUN_ID": "scaleguide",
        }
        for rank in range(config.workers)
    ]

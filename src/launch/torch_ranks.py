"""Launch ranks that find each other through torchrun's environment variables."""

from __future__ import annotations

import secrets

from src.config import Config
from src.launch.host import worker_host
from src.launch.hosts import Hosts
from src.launch.launcher import LocalLauncher
from src.launch.process_spec import ProcessSpec, rank_spec
from src.run.variables import STORE


class TorchRanks(LocalLauncher):
    """A launcher of one process a worker, with the environment variables that torchrun would set."""

    def process_specs(self, config: Config, hosts: Hosts) -> list[ProcessSpec]:
        """Return a rank for each worker, on a host each."""
        return [
            rank_spec(rank, config.workers, (rank,), environment, worker_host(rank))
            for rank, environment in enumerate(rendezvous_environments(config, hosts))
        ]


def rendezvous_environments(config: Config, hosts: Hosts) -> list[dict[str, str]]:
    """Return, by rank, the variables through which the ranks form their process group."""
    address, port = hosts.free_address(worker_host(0)).split(":")
    interfaces = [hosts.host(worker_host(rank)).interface for rank in range(config.workers)]
    # A job that is started again must not find what the ranks before it have left.
    store = f"store-{secrets.token_hex(8)}"
    # Processes that share no files meet at a port, where rank 0 listens (src/runtime/torch/process_group.py).
    meeting = {STORE: store} if hosts.share_files else {}
    return [
        {
            **meeting,
            # The backends' own connections: within this host, or between hosts.
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(config.workers),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            # Lightning recognises externally started ranks by this one.
            "TORCHELASTIC_RUN_ID": "scaleguide",
        }
        for rank, interface in enumerate(interfaces)
    ]

"""Workers and parameter servers that are told each other's addresses, and a coordinator, all on this host."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping

from src.config import Config
from src.launch import tf_config
from src.launch.place import Place

# The addresses of each kind of process, the kind and the number of this one -> its environment variables.
Tell = Callable[[dict[str, list[str]], str, int], Mapping[str, str]]
CLUSTER = "SCALEGUIDE_CLUSTER"


def known() -> tuple[Mapping[str, list[str]], str, int]:
    """What this process was told: everybody's addresses by kind, its own kind and number."""
    told = json.loads(os.environ[CLUSTER])
    return told["cluster"], told["kind"], told["number"]


def places(config: Config) -> list[Place]:
    """The processes to start; each is told of the others in `CLUSTER`, as JSON."""
    return told(config, ("worker", "server", "coordinator"), _tell)


def told(config: Config, kinds: tuple[str, str, str], tell: Tell) -> list[Place]:
    """The same with other names for a worker, a server and the coordinator, who writes all records."""
    servers = config.strategy.get("servers", 0)
    addresses = iter(tf_config.free_addresses(config.workers + servers + 1))
    worker, server, coordinator = kinds
    counts = {worker: config.workers, server: servers, coordinator: 1}
    cluster = {kind: [next(addresses) for _ in range(count)] for kind, count in counts.items()}

    def place(name: str, kind: str, number: int, worker_number: int, **role: bool) -> Place:
        rank = number if kind == worker else 0
        known = {"RANK": str(rank), "WORLD_SIZE": str(config.workers)}
        environment = {**known, **tell(cluster, kind, number)}
        return Place(environment, (worker_number % config.workers,), name, **role)

    # Where steps are everybody's, nobody can be spared.
    lone = config.strategy.get("mode") != "sync"
    # Helpers go round-robin over the workers' cores.
    return [
        *(place(f"rank-{n}", worker, n, n, serves=True, dispensable=lone) for n in range(config.workers)),
        *(place(f"server-{n}", server, n, n, serves=True, helper=True) for n in range(servers)),
        place("coordinator", coordinator, 0, servers, helper=True),
    ]


def _tell(cluster: dict[str, list[str]], kind: str, number: int) -> Mapping[str, str]:
    return {CLUSTER: json.dumps({"cluster": cluster, "kind": kind, "number": number})}

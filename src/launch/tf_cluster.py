"""A coordinator with TensorFlow servers of two kinds, workers and parameter servers, all on this host."""

from __future__ import annotations

from src.config import Config
from src.launch import tf_config
from src.launch.place import Place


def places(config: Config) -> list[Place]:
    """The processes to start: workers, parameter servers, and the coordinator, who writes all records."""
    servers = config.strategy["servers"]
    addresses = iter(tf_config.free_addresses(config.workers + servers + 1))
    counts = {"worker": config.workers, "ps": servers, "chief": 1}
    cluster = {kind: [next(addresses) for _ in range(count)] for kind, count in counts.items()}

    def place(name: str, kind: str, number: int, worker: int, **role: bool) -> Place:
        rank = number if kind == "worker" else 0
        known = {"RANK": str(rank), "WORLD_SIZE": str(config.workers)}
        told = {**known, **tf_config.environment(cluster, kind, number)}
        return Place(told, (worker % config.workers,), name, **role)

    # Helpers go round-robin over the workers' cores.
    return [
        *(place(f"rank-{n}", "worker", n, n, serves=True, dispensable=True) for n in range(config.workers)),
        *(place(f"server-{n}", "ps", n, n, serves=True, helper=True) for n in range(servers)),
        place("coordinator", "chief", 0, servers, helper=True),
    ]

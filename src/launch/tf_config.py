"""TensorFlow workers, one process each, that find each other through `TF_CONFIG`, all on this host."""

from __future__ import annotations

import contextlib
import json
import socket

from src.config import Config


def environments(config: Config) -> list[dict[str, str]]:
    """One set of environment variables a rank; worker 0 is the chief."""
    workers = [f"127.0.0.1:{port}" for port in _free_ports(config.workers)]
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(config.workers),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            ),
        }
        for rank in range(config.workers)
    ]


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; held together, so that no two are the same."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]

"""TensorFlow workers, one process each, that find each other through `TF_CONFIG`, all on this host."""

from __future__ import annotations

import contextlib
import json
import socket

from src.config import Config
from src.launch import place
from src.launch.place import Place
from src.launch.tensorflow import QUIET


def places(config: Config) -> list[Place]:
    """The processes to start; worker 0 is the chief."""
    cluster = {"worker": free_addresses(config.workers)}
    return [
        place.of_rank(number, config.workers, (number,), environment(cluster, "worker", number))
        for number in range(config.workers)
    ]


def environment(cluster: dict[str, list[str]], kind: str, number: int) -> dict[str, str]:
    """What a task of the cluster is told: everybody's address, and which of them it is."""
    told = {"cluster": cluster, "task": {"type": kind, "index": number}}
    return {**QUIET, "TF_CONFIG": json.dumps(told)}


def free_addresses(count: int) -> list[str]:
    """Addresses where nobody listens; held together, so that no two are the same."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]

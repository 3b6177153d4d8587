"""Launch TensorFlow workers, one process each, that find each other through `TF_CONFIG`, all on this host."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping

from src.config import Config
from src.launch.launcher import LocalLauncher
from src.launch.process_spec import ProcessSpec, rank_spec
from src.launch.single_process import QUIET


class TFWorkers(LocalLauncher):
    """A launcher of one process a worker; worker 0 is TensorFlow's chief."""

    def process_specs(self, config: Config) -> list[ProcessSpec]:
        """Return a rank for each worker."""
        addresses = {"worker": free_addresses(config.workers)}
        return [
            rank_spec(number, config.workers, (number,), task_environment(addresses, "worker", number))
            for number in range(config.workers)
        ]


def task_environment(addresses: Mapping[str, list[str]], job: str, task: int) -> dict[str, str]:
    """Return the variables of task `task` of job `job` in a TensorFlow cluster.

    `addresses` are the `host:port` of each task, by job.
    """
    cluster = {"cluster": addresses, "task": {"type": job, "index": task}}
    return {**QUIET, "TF_CONFIG": json.dumps(cluster)}


def free_addresses(count: int) -> list[str]:
    """Return `count` different `host:port`s of this host that are free to listen at."""
    with contextlib.ExitStack() as stack:
        # All sockets are bound at once, so that no two have the same port.
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]

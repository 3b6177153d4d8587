"""Launch TensorFlow workers, one process each, that find each other through `TF_CONFIG`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from src.config import Config
from src.launch.host import worker_host
from src.launch.hosts import Hosts
from src.launch.launcher import LocalLauncher
from src.launch.process_spec import ProcessSpec, rank_spec
from src.launch.spawn import QUIET


class TFWorkers(LocalLauncher):
    """A launcher of one process a worker; worker 0 is TensorFlow's chief."""

    def process_specs(self, config: Config, hosts: Hosts) -> list[ProcessSpec]:
        """Return a rank for each worker, on a host each."""
        names = [worker_host(number) for number in range(config.workers)]
        addresses = {"worker": [hosts.free_address(name) for name in names]}
        return [
            rank_spec(number, config.workers, (number,), task_environment(addresses, "worker", number), name)
            for number, name in enumerate(names)
        ]


def task_environment(addresses: Mapping[str, list[str]], job: str, task: int) -> dict[str, str]:
    """Return the variables of task `task` of job `job` in a TensorFlow cluster.

    `addresses` are the `host:port` of each task, by job.
    """
    cluster = {"cluster": addresses, "task": {"type": job, "index": task}}
    return {**QUIET, "TF_CONFIG": json.dumps(cluster)}

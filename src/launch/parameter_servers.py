"""Launch the processes of a parameter-server job: workers, servers and a coordinator, on a host each.

Each process knows the addresses of all others, and the token that torch's ask for. Workers and servers answer
requests; the coordinator schedules the steps and writes the records of all workers, and the job ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from src.config import Config
from src.launch.host import COORDINATOR_HOST, server_host, worker_host
from src.launch.hosts import Hosts
from src.launch.launcher import LocalLauncher
from src.launch.process_spec import ProcessSpec, rank_name
from src.launch.tf_workers import task_environment
from src.run.variables import RANK, TOKEN, WORLD_SIZE, ClusterSpec, new_token


class ParameterServers(LocalLauncher):
    """A launcher of a process for each worker and server, and of one coordinator."""

    # Names of the jobs of workers, servers and coordinator in the cluster.
    jobs = ("worker", "server", "coordinator")

    def process_specs(self, config: Config, hosts: Hosts) -> list[ProcessSpec]:
        """Return the processes of all workers, of the servers, and of the coordinator."""
        worker, server, coordinator = self.jobs
        servers = config.strategy.get("servers", 0)
        names = {
            worker: [worker_host(number) for number in range(config.workers)],
            server: [server_host(number) for number in range(servers)],
            coordinator: [COORDINATOR_HOST],
        }
        token = new_token()
        addresses = {job: [hosts.free_address(name) for name in own] for job, own in names.items()}

        def spec(name: str, job: str, task: int, core_of: int, **role: bool) -> ProcessSpec:
            """Specify task `task` of job `job`, on the core of worker `core_of` modulo the workers."""
            identity = {RANK: str(task if job == worker else 0), WORLD_SIZE: str(config.workers)}
            environment = {**identity, TOKEN: token, **self.environment(addresses, job, task)}
            return ProcessSpec(environment, (core_of % config.workers,), name, names[job][task], **role)

        # Where each step needs all workers, none is dispensable.
        spare = not config.synchronous
        # Helpers go round-robin over the workers' cores.
        return [
            *(
                spec(rank_name(n), worker, n, n, serves=True, dispensable=spare)
                for n in range(config.workers)
            ),
            *(spec(f"server-{n}", server, n, n, serves=True, helper=True) for n in range(servers)),
            spec("coordinator", coordinator, 0, servers, helper=True),
        ]

    def environment(self, addresses: Mapping[str, list[str]], job: str, task: int) -> dict[str, str]:
        """Return the variables that tell task `task` of job `job` its part in the cluster.

        `addresses` are the `host:port` of each task, by job.
        """
        return ClusterSpec(addresses, job, task).to_environment()


class TFParameterServers(ParameterServers):
    """A launcher of workers, servers and a coordinator by TensorFlow's names, which read `TF_CONFIG`."""

    jobs = ("worker", "ps", "chief")

    def environment(self, addresses: Mapping[str, list[str]], job: str, task: int) -> dict[str, str]:
        """Return the `TF_CONFIG` of task `task` of job `job`."""
        return task_environment(addresses, job, task)

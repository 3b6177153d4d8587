"""Start Ray on emulated machines.

cluster = RayCluster(machines, python_with_ray(folder))
cluster.run(["-c", "import ray; ray.init(); print(len(ray.nodes()))"]).stdout   # 2
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.cluster.boot import OWN_FOLDER
from tests.cluster.machines import Machines, login_variables

PORT = 6379
TOKEN = "/run/ray-token"
# What `ray start` prints when its node is one of the cluster.
READY = "Ray runtime started."
START_SECONDS = 60.0
VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": TOKEN,
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray would have ranks give way to all others, and be the first to be killed where memory is short.
    "RAY_worker_niceness": "0",
    "RAY_worker_oom_score_adjustment": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    # A silent machine counts as lost after 15 seconds, not 65.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
# Enough for the arrays of a small dataset; by default it is a third of the memory, on each machine.
STORE_BYTES = 500_000_000


class NotStarted(Exception):
    """The error where a node doesn't come up; its text is what it printed."""


class RayCluster:
    """A node on each machine, the head on the first; it ends with the machines.

    Attributes:
        machines: those on which it runs.
        python: the Python that has Ray.
        address: `host:port` of the head.
        environment: the variables of every process that deals with the cluster.
    """

    def __init__(self, machines: Machines, python: Path) -> None:
        """Start the nodes, and wait until all are up.

        Raises:
            NotStarted: where one doesn't come up.
        """
        self.machines = machines
        self.python = python
        self.address = f"{machines.address(1)}:{PORT}"
        self.environment = {**ray_variables(python), "RAY_ADDRESS": self.address}
        # Most of the time they import Ray, each on a core of its own.
        starting = [self._start(machine) for machine in machines.numbers]
        for process in starting:
            _wait(process)

    def join(self, machine: int) -> None:
        """Start the node of a machine that was off, and wait until it is up.

        Its former node counts as alive for some seconds more, until it has been silent for long enough.

        Raises:
            NotStarted: where it doesn't come up.
        """
        _wait(self._start(machine))

    def run(
        self,
        arguments: Sequence[str],
        machine: int = 1,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = OWN_FOLDER,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments on a machine to its end."""
        command = [str(self.python), *arguments]
        return self.machines.run(machine, command, {**self.environment, **(env or {})}, cwd, timeout)

    def _start(self, machine: int) -> subprocess.Popen[str]:
        """Start the node of a machine."""
        give_token(self.machines, machine)
        words = [f"--node-ip-address={self.machines.address(machine)}", "--num-cpus=1", "--block"]
        words += [f"--object-store-memory={STORE_BYTES}"]
        if machine == 1:
            words += ["--head", f"--port={PORT}", "--include-dashboard=false"]
        else:
            words += [f"--address={self.address}"]
        command = [str(self.python), "-u", "-m", "ray.scripts.scripts", "start", *words]
        return self.machines.start(machine, command, ray_variables(self.python), stderr=subprocess.STDOUT)


def ray_variables(python: Path) -> dict[str, str]:
    """Return the variables of every process that uses this Python's Ray on machines with a token."""
    return {**VARIABLES, "PATH": f"{python.parent}:{login_variables()['PATH']}"}


def give_token(machines: Machines, machine: int) -> None:
    """Write the token of these machines, which is no secret, on one of them."""
    machines.path(machine, TOKEN).write_text(machines.mark)


def _wait(process: subprocess.Popen[str]) -> None:
    """Wait until a node says that it is up; it says little more from then on."""
    assert process.stdout is not None
    printed = []
    with _killed_after(process, START_SECONDS):
        for line in process.stdout:
            if READY in line:
                return
            printed.append(line)
    raise NotStarted("".join(printed))


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    """Kill a process that keeps the block waiting for longer."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

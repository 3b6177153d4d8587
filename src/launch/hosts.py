"""Define the interface of the hosts of a job.

A launcher asks for hosts by name, `worker-0`, `server-1` or `coordinator`, and places its processes there.
They are this one (`local/`), emulated ones (`emulated/`), or those of a cluster (`cluster/`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from src.launch.host import Host
from src.launch.launched import LaunchedProcess
from src.launch.process_spec import ProcessSpec
from src.machine.devices import Device


class Hosts(ABC):
    """The hosts of one start of a job; they are on this machine unless a class says otherwise.

    Attributes:
        own: processes that run for the hosts themselves, and end with the job.
        environment: the variables of a launcher's own processes, such as `mpiexec`.
        share_files: whether all processes see one run's directory.
    """

    share_files = True

    def __init__(self) -> None:
        self.own: list[LaunchedProcess] = []
        self.environment: Mapping[str, str] = {}

    @property
    def networks(self) -> dict[str, str]:
        """Return the hosts on which nobody else sends, and the process whose `/proc` entry shows each."""
        return {}

    @abstractmethod
    def host(self, name: str) -> Host:
        """Return the host called `name`; it is made when it is first asked for."""

    def devices_of(self, spec: ProcessSpec, own: Sequence[Device]) -> list[Device]:
        """Return the devices of a process; `own` are the workers' on this host, in their order.

        They are those of the workers that the process is, or whose devices it shares.
        """
        return [own[worker % len(own)] for worker in spec.workers]

    @abstractmethod
    def free_address(self, name: str) -> str:
        """Return another `host:port` at which a process of that host may listen."""

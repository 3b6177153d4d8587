"""Describe a process that the parent has started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from src.launch.host import Host
from src.launch.process_spec import ProcessSpec
from src.launch.spawn import Process
from src.machine.devices import Device


@dataclass
class LaunchedProcess:
    """A started process of a run, or of its launcher.

    Attributes:
        rank: the rank that the process is, or whose records it writes.
        devices: the devices that it holds.
        process: the process itself.
        log: the file with its output.
        spec: its specification, with all environment variables.
        host: where it is.
        start_again: starts it as it was started, once it has ended.
    """

    rank: int
    devices: list[Device]
    process: Process
    log: Path
    spec: ProcessSpec
    host: Host = field(default_factory=Host)
    start_again: Callable[[], Process] | None = None

    @property
    def title(self) -> str:
        """Return the name of the process for messages, as `rank 1` or `coordinator`."""
        return self.spec.name.replace("-", " ")


def describe_devices(launched: Sequence[LaunchedProcess]) -> list[dict[str, Any]]:
    """Return the devices that a run's processes hold, as environment.json has them."""
    held = dict.fromkeys((device, each.host.address) for each in launched for device in each.devices)
    return [{"kind": each.kind, "number": each.index, "cores": list(each.cores)} for each, _ in held]


def describe_hosts(launched: Sequence[LaunchedProcess]) -> dict[str, Any]:
    """Return the entry `hosts` of environment.json: those of a cluster, with the processes there."""
    found = [
        {**facts, "processes": [each.spec.name for each in launched if each.host is host]}
        for host in dict.fromkeys(each.host for each in launched)
        if (facts := host.describe()) is not None
    ]
    return {"hosts": found} if found else {}

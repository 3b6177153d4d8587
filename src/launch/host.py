"""Describe a host of a run as the processes there see it, and name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from src.machine.links import Link

COORDINATOR_HOST = "coordinator"


def worker_host(number: int) -> str:
    """Return the name of the host of worker `number`."""
    return f"worker-{number}"


def server_host(number: int) -> str:
    """Return the name of the host of server `number`."""
    return f"server-{number}"


@dataclass(frozen=True)
class Host:
    """A host as its processes see it.

    Attributes:
        address: by which other hosts of the run reach it.
        interface: the name of the network interface with that address.
        environment: the variables by which a process gets there.
        holder: the process whose `/proc` entry shows the host's network, `None` for this host.
        link: the emulated link to the switch, `None` for this host.
        made_by: what makes that link: `plain`, `tbf`, `netem` or `router` (`src/machine/switch.py`).
    """

    address: str = "127.0.0.1"
    interface: str = "lo"
    environment: Mapping[str, str] = field(default_factory=dict)
    holder: int | None = None
    link: Link | None = None
    made_by: str | None = None

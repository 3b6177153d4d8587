"""Describe a host of a run as the processes there see it, and name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from src.launch.spawn import Spawn

COORDINATOR_HOST = "coordinator"
# Name of the process that holds emulated hosts, and of its log.
SWITCH = "switch"


def worker_host(number: int) -> str:
    """Return the name of the host of worker `number`."""
    return f"worker-{number}"


def server_host(number: int) -> str:
    """Return the name of the host of server `number`."""
    return f"server-{number}"


@dataclass(eq=False)
class Host:
    """A host on which processes of a run are: this one, unless a subclass says otherwise.

    Attributes:
        address: by which other hosts of the run reach it.
        interface: the name of the network interface with that address.
        environment: the variables by which a process gets there.
        holder: the process here whose `/proc` entry shows the host's network, `None` if there is none.
        lost: why nothing is heard of the host any more, `None` while it answers.
    """

    address: str = "127.0.0.1"
    interface: str = "lo"
    environment: Mapping[str, str] = field(default_factory=dict)
    holder: int | None = None
    lost: str | None = None

    def folder(self, out: Path) -> Path:
        """Return where the run's directory `out` is on that host; processes of one machine share it."""
        return out

    def spawn_by(self, spawn: Spawn) -> Spawn:
        """Return the function that starts a process there; `spawn` is the one that its launcher has here."""
        return spawn

    def answered(self, since: float) -> bool:
        """Return whether the host has answered, or was lost, since the moment `since` of `time.monotonic`.

        What ends on this machine is known at once.
        """
        return True

    def describe(self) -> dict[str, Any] | None:
        """Return what `environment.json` says of the host, `None` of this one, which it is about anyway."""
        return None

    def end_job(self) -> None:
        """Fetch what the processes of a job have left there, once all have ended; here it is in its place."""

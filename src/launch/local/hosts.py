"""Have all processes of a run on this host."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from src.launch.host import Host, LocalHost
from src.launch.process_spec import ProcessSpec
from src.machine import namespaces
from src.machine.devices import Device

if TYPE_CHECKING:
    from src.launch.launched import LaunchedProcess


class OneMachine:
    """The devices and files of hosts that are all on this machine."""

    share_files = True

    def devices_of(self, spec: ProcessSpec, own: Sequence[Device]) -> list[Device]:
        """Return those of the workers that the process is, or whose devices it shares."""
        return [own[worker % len(own)] for worker in spec.workers]


class LocalHosts(OneMachine):
    """This host, by whatever name; its processes meet at the loopback interface."""

    def __init__(self) -> None:
        self.own: list[LaunchedProcess] = []
        self.environment: Mapping[str, str] = {}
        self._ports: set[int] = set()

    @property
    def networks(self) -> dict[str, str]:
        """Return this host, by no name, if the run has a network namespace."""
        return {"": namespaces.holder()} if namespaces.inside() else {}

    def host(self, name: str) -> Host:
        """Return this host."""
        return LocalHost()

    def free_address(self, name: str) -> str:
        """Return a `host:port` that is free now, and another one at each call."""
        while True:
            with socket.socket() as probe:
                probe.bind((LocalHost().address, 0))
                port = probe.getsockname()[1]
            if port not in self._ports:
                self._ports.add(port)
                return f"{LocalHost().address}:{port}"

"""Have all processes of a run on this host."""

from __future__ import annotations

import socket

from src.launch.host import Host
from src.launch.hosts import Hosts
from src.machine import namespaces


class LocalHosts(Hosts):
    """This host, by whatever name; its processes meet at the loopback interface."""

    def __init__(self) -> None:
        super().__init__()
        self._ports: set[int] = set()

    @property
    def networks(self) -> dict[str, str]:
        """Return this host, by no name, if the run has a network namespace."""
        return {"": namespaces.holder()} if namespaces.inside() else {}

    def host(self, name: str) -> Host:
        """Return this host."""
        return Host()

    def free_address(self, name: str) -> str:
        """Return a `host:port` that is free now, and another one at each call."""
        address = self.host(name).address
        while True:
            with socket.socket() as probe:
                probe.bind((address, 0))
                port = probe.getsockname()[1]
            if port not in self._ports:
                self._ports.add(port)
                return f"{address}:{port}"

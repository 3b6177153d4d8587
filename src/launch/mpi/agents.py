"""Meet the agents that `mpiexec` has started on this host, and have each run its rank."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from io import BufferedRWPair
from pathlib import Path

from src.launch.local.agents import AgentProcess, send_line
from src.launch.spawn import KEEP_FREED_MEMORY
from src.run.variables import RANK

# Limit for all agents to connect; each is a Python interpreter that imports little, and starts at once.
CONNECT_SECONDS = 60.0
POLL_SECONDS = 0.1


class MPIAgents:
    """The agents on this host (`src.launch.mpi.agent`), which connect to a Unix socket.

    Attributes:
        address: the path of the socket.
    """

    def __init__(self, folder: Path) -> None:
        """Listen in `folder` until `accept` returns."""
        self.address = str(folder / "socket")
        self._agents: dict[int, BufferedRWPair] = {}
        self._running: set[int] = set()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self.address)
        self._listening.listen()
        self._listening.settimeout(POLL_SECONDS)

    def accept(self, count: int, may_come: Callable[[], bool]) -> int:
        """Wait for `count` agents, as long as they may come; return how many there are, fewer in the end."""
        deadline = time.monotonic() + CONNECT_SECONDS
        with self._listening:
            while len(self._agents) < count and may_come() and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    connection, _ = self._listening.accept()
                    connection.settimeout(None)
                    stream = connection.makefile("rwb")
                    if line := stream.readline():
                        self._agents[json.loads(line)["rank"]] = stream
        return len(self._agents)

    def has(self, environment: Mapping[str, str]) -> bool:
        """Return whether one of the agents is that of the rank in `environment`, and runs none yet."""
        return int(environment[RANK]) in self._agents and int(environment[RANK]) not in self._running

    def spawn(self, command: list[str], environment: Mapping[str, str], log: Path) -> AgentProcess:
        """Have the agent of the rank in `environment` run `command` (a `Spawn`)."""
        rank = int(environment[RANK])
        stream = self._agents[rank]
        self._running.add(rank)
        variables = {**KEEP_FREED_MEMORY, **environment}
        send_line(stream, {"command": command, "environment": variables, "log": str(log)})
        return AgentProcess(stream, command)

"""An engine whose hosts are on this machine: agents at addresses of the loopback interface."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from src.launch.cluster.engine import HostLost, Node

ROOT = Path(__file__).parents[3]
# How many hosts there are, and a folder in which each has a cache of its own.
HOSTS, CACHES = "TEST_HOSTS", "TEST_CACHES"


def connect(hardware: Mapping[str, Any]) -> LocalEngine:
    return LocalEngine()


class LocalEngine:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="engine-")

    def nodes(self) -> list[Node]:
        count = int(os.environ.get(HOSTS, "2"))
        return [Node(str(number), f"127.0.0.{number}", number == 1) for number in range(1, count + 1)]

    def start_agent(self, node: Node, lost_seconds: float) -> AgentConnection:
        path = tempfile.mktemp(prefix=f"{node.id}-", dir=self._folder.name)
        caches = os.environ.get(CACHES)
        own = {} if caches is None or node.own else {"SCALEGUIDE_CACHE": str(Path(caches, node.id))}
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.launch.cluster.agent_server",
                path,
                node.address,
                str(lost_seconds),
            ],
            env={**os.environ, **own, "PYTHONPATH": str(ROOT)},
            # Nobody else's prepared/ is there.
            cwd=self._folder.name,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        return AgentConnection(path, process)

    def close(self) -> None:
        self._folder.cleanup()


class AgentConnection:
    def __init__(self, path: str, process: subprocess.Popen[bytes]) -> None:
        self._path, self.process = path, process

    def call(self, method: str, *arguments: Any, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        try:
            with self._connect(deadline) as connection:
                connection.send((method, arguments))
                if not connection.poll(max(0.0, deadline - time.monotonic())):
                    raise HostLost(f"it didn't answer for {seconds:g} s")
                good, result = connection.recv()
        except (OSError, EOFError) as error:
            raise HostLost("its agent has ended") from error
        if not good:
            raise result
        return result

    def _connect(self, deadline: float) -> Any:
        while True:
            try:
                return Client(self._path)
            except (FileNotFoundError, ConnectionRefusedError):
                # It starts: the socket isn't there, or doesn't listen yet.
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

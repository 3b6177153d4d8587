"""Measure messages between a worker and a server of torch's parameter servers: send and receive, over TCP.

Worker 0 and server 0 do, or the coordinator where there are no servers; the others are idle. Whoever measures
leaves the rows to the parent, and the coordinator ends when it has been told so.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from src.config import Config
from src.measure import exchange_benchmark
from src.measure.recorder import Recorder
from src.run import files
from src.run.status import Status
from src.run.tables import write_text
from src.run.variables import ClusterSpec
from src.runtime.common import messages
from src.runtime.common.context import RankContext
from src.runtime.common.listener import Listener
from src.runtime.common.messages import Connection

CONNECT_SECONDS = 120.0


class MessageBackend:
    """A worker's connection to a server, which sends back what it gets."""

    name, sends, rank = "messages", True, 0

    def __init__(self, connection: Connection, server: str) -> None:
        self.hosts: Sequence[str] = ["worker-0", server]
        self._connection = connection

    def make(self, size: int) -> np.ndarray:
        """Make an array of `size` bytes."""
        return np.zeros(size // 4, np.float32)

    def barrier(self) -> None:
        """Do nothing: the server waits for requests alone."""

    def operations(self) -> Mapping[str, tuple[Callable[[Any], None], int]]:
        """Return none: servers and workers talk by two."""
        return {}

    def send(self, buffer: np.ndarray, to: int) -> None:
        """Send an array."""
        self._connection.send("echo", [buffer])

    def receive(self, buffer: np.ndarray, sender: int) -> None:
        """Receive what the server sends back."""
        self._connection.receive()


def _echo(connection: Connection) -> None:
    """Send back what comes, until the other end has gone."""
    while True:
        message = connection.receive()
        connection.send("echo", message.arrays)


def serve(config: Config, cores: tuple[int, ...], folder: Path) -> NoReturn:
    """Run the process of a worker or a server until the parent ends it."""
    cluster = ClusterSpec.from_environment()
    if cluster.job == "server":
        Listener(cluster.addresses["server"][cluster.task], _echo)
    elif cluster.task == 0:
        servers = cluster.addresses.get("server") or cluster.addresses["coordinator"]
        measured = messages.connect(servers[0], seconds=CONNECT_SECONDS)
        name = "server-0" if cluster.addresses.get("server") else "coordinator"
        rows = exchange_benchmark.measure(config, MessageBackend(measured, name))
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / files.EXCHANGE, json.dumps(rows))
        messages.connect(cluster.addresses["coordinator"][0], seconds=CONNECT_SECONDS).ask("done")
    threading.Event().wait()
    raise AssertionError("nobody sets that event")


def train(context: RankContext, recorder: Recorder) -> None:
    """Run the coordinator, until the worker has measured."""
    done = threading.Event()

    def answer(connection: Connection) -> None:
        while True:
            message = connection.receive()
            connection.send("echo", message.arrays)
            if message.kind == "done":
                done.set()

    listening = Listener(ClusterSpec.from_environment().addresses["coordinator"][0], answer)
    recorder.start()
    done.wait()
    listening.close()
    recorder.finish(Status.OK)

"""Serve a host's agent at a Unix socket: `python -m <this module> SOCKET ADDRESS SECONDS`.

Each connection is one call; several may be under way at once.
"""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection, Listener

from src.launch.cluster.agent import HostAgent


def answer(agent: HostAgent, connection: Connection) -> None:
    with connection:
        method, arguments = connection.recv()
        try:
            result = True, agent.handle(method, *arguments)
        except Exception as error:
            result = False, error
        connection.send(result)
    if method == "close":
        os._exit(0)


def main() -> None:
    path, address, seconds = sys.argv[1:]
    with Listener(path) as listening:
        agent = HostAgent(address, float(seconds))
        while True:
            connection = listening.accept()
            threading.Thread(target=answer, args=(agent, connection), daemon=True).start()


if __name__ == "__main__":
    main()

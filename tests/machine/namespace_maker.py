"""Make a namespace and have children enter it: prints a line of JSON, and waits for the end of its input.

The line has the namespace's holder, the port at which a child inside listens at every address, that child's
user, the interfaces that a command inside sees, what another child received at the port, and the bytes sent.
"""

from __future__ import annotations

# An ordinary user inside can't import what only the capability to read everything shows.
import encodings.idna  # noqa: F401
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from src.machine import namespaces
from src.machine.interfaces import counters_of
from src.machine.process import die_with


def inside(act: Callable[[int], None]) -> int:
    """Have a child enter, as a rank does, and act with a pipe to write to; returns the pipe's other end."""
    reading, writing = os.pipe()
    maker = os.getpid()
    if not os.fork():
        namespaces.enter()
        die_with(maker)
        # A rank, which isn't forked from the maker, has no end of the pipe to the holder.
        os.closerange(3, writing)
        # A second time is none.
        namespaces.enter()
        act(writing)
        os._exit(0)
    os.close(writing)
    return reading


def listen(writing: int) -> None:
    listening = socket.create_server(("", 0))
    facts = {"port": listening.getsockname()[1], "user": os.getuid()}
    os.write(writing, json.dumps(facts).encode())
    os.close(writing)
    listening.accept()[0].sendall(b"inside")
    signal.pause()


def main() -> None:
    namespace = namespaces.Namespace()
    os.environ |= namespace.environment
    with open(inside(listen)) as told:
        facts = json.loads(told.read())

    def connect(writing: int) -> None:
        with socket.create_connection(("127.0.0.1", facts["port"]), timeout=5) as connection:
            os.write(writing, connection.recv(100))

    with open(inside(connect)) as told:
        facts["received"] = told.read()
    seen = subprocess.run(namespaces.entering(["cat", "/proc/net/dev"]), capture_output=True, text=True)
    facts["interfaces"] = [line.split(":")[0].strip() for line in seen.stdout.splitlines()[2:]]
    facts |= {
        "holder": namespace.holder,
        "sent": sum(each.sent_bytes for each in counters_of(namespace.holder).values()),
    }
    print(json.dumps(facts), flush=True)
    sys.stdin.read()
    namespace.close()


if __name__ == "__main__":
    main()

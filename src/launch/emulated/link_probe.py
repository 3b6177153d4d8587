"""Measure round trip and rate between two idle hosts by plain TCP.

    python -m src.launch.emulated.link_probe PARENT ...
        serve ADDRESS       listen there, print the port, answer one client
        ask ADDRESS PORT    measure, print the result as JSON

Both enter the namespace of their environment first, and end with PARENT, the process that has started them.
The client sends single bytes to and fro, and then takes from the server what that can send; how fast is told
from what arrives after the first third of the time, in which TCP finds out about the link.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from statistics import median

from src.machine import namespaces, process

# The first round trips, in which hosts look each other up, are left out.
WARM_UP, ROUND_TRIPS = 3, 15
# How long the server sends: so many seconds and round trips.
SEND_SECONDS, SEND_ROUND_TRIPS = 1.0, 20
CHUNK = 1 << 16
LIMIT_SECONDS = 60.0


def serve(address: str) -> None:
    """Answer one client: its single bytes one by one, then, for as many seconds as it says, all that fits."""
    with socket.create_server((address, 0)) as listening:
        listening.settimeout(LIMIT_SECONDS)
        print(listening.getsockname()[1], flush=True)
        connection, _ = listening.accept()
    with connection:
        connection.settimeout(LIMIT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(WARM_UP + ROUND_TRIPS):
            connection.sendall(connection.recv(1))
        end = time.perf_counter() + float(connection.recv(64))
        chunk = bytes(CHUNK)
        while time.perf_counter() < end:
            connection.sendall(chunk)


def ask(address: str, port: int) -> dict[str, float]:
    """Measure the link to a server; return its round trip in ms, and the rate from there in Mbit/s.

    The rate is of what programs get, which is less than that of Ethernet frames by their headers.
    """
    with socket.create_connection((address, port), timeout=LIMIT_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(WARM_UP + ROUND_TRIPS):
            start = time.perf_counter()
            connection.sendall(b".")
            connection.recv(1)
            trips.append(time.perf_counter() - start)
        trip = median(trips[WARM_UP:])
        seconds = SEND_SECONDS + SEND_ROUND_TRIPS * trip
        connection.sendall(f"{seconds:.6f}".encode())
        buffer = bytearray(CHUNK)
        received, arrivals = 0, []
        while size := connection.recv_into(buffer):
            received += size
            arrivals.append((time.perf_counter(), received))
    settled = next(index for index, (when, _) in enumerate(arrivals) if when > arrivals[0][0] + seconds / 3)
    (first, before), (last, after) = arrivals[settled], arrivals[-1]
    return {"round_trip_ms": trip * 1e3, "rate_mbit": (after - before) * 8e-6 / (last - first)}


def main() -> None:
    """Serve or ask, as the command line says."""
    parent, what, address, *port = sys.argv[1:]
    namespaces.enter()
    process.die_with(int(parent))
    if what == "serve":
        serve(address)
    else:
        print(json.dumps(ask(address, int(port[0]))), flush=True)


if __name__ == "__main__":
    main()

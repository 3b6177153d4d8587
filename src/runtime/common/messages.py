"""Send messages between processes over TCP: a kind, figures as JSON, arrays as their bytes.

Nothing that arrives is executed or unpickled. A message is

    4 bytes    length of the head, big-endian
    head       {"kind": ..., "figures": {...}, "arrays": [[dtype, shape], ...]} as UTF-8
    arrays     one after the other, in C order and this machine's byte order
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

HEAD = struct.Struct(">I")
MOST_HEAD_BYTES = 1 << 20
DTYPES = ("float32", "float64", "int64", "uint8")
RETRY_SECONDS = 0.05


@dataclass(frozen=True)
class Message:
    """One message: its kind, named figures, and arrays."""

    kind: str
    figures: dict[str, Any]
    arrays: tuple[np.ndarray, ...]


class Connection:
    """One end of a TCP connection, for one thread at a time."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected

    def send(self, kind: str, arrays: Sequence[np.ndarray] = (), **figures: Any) -> None:
        """Send a message of `kind` with `arrays` and named `figures`.

        The arrays may be changed once this method has returned.
        """
        # Not `ascontiguousarray`, which makes one element of a number.
        arrays = [np.asarray(array, order="C") for array in arrays]
        described = [[array.dtype.name, array.shape] for array in arrays]
        head = json.dumps({"kind": kind, "figures": figures, "arrays": described}).encode()
        self._socket.sendall(HEAD.pack(len(head)) + head)
        for array in arrays:
            self._socket.sendall(array.data.cast("B") if array.size else b"")

    def receive(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            ConnectionError: if the other end has closed the connection, or sent something that is no message.
        """
        (length,) = HEAD.unpack(self._exactly(bytearray(HEAD.size)))
        if length > MOST_HEAD_BYTES:
            raise ConnectionError(f"a head of {length} bytes is none of ours")
        try:
            head = json.loads(bytes(self._exactly(bytearray(length))))
        except ValueError as error:
            raise ConnectionError("a head that is no JSON is none of ours") from error
        arrays = []
        for name, shape in head["arrays"]:
            if name not in DTYPES:
                raise ConnectionError(f"arrays of {name} are not sent")
            array = np.empty(shape, name)
            if array.size:
                self._exactly(array.data.cast("B"))
            arrays.append(array)
        return Message(head["kind"], head["figures"], tuple(arrays))

    def ask(self, kind: str, arrays: Sequence[np.ndarray] = (), **figures: Any) -> Message:
        """Send a message as `send` does, wait for the answer and return the answer."""
        self.send(kind, arrays, **figures)
        return self.receive()

    def close(self) -> None:
        """Close this end; the other end's `receive` then raises `ConnectionError`."""
        self._socket.close()

    def _exactly(self, into: bytearray | memoryview) -> bytearray | memoryview:
        rest = memoryview(into)
        while len(rest):
            read = self._socket.recv_into(rest)
            if not read:
                raise ConnectionError("the other end has gone")
            rest = rest[read:]
        return into


def connect(address: str, *, seconds: float) -> Connection:
    """Connect to the process that listens at `address`, or that begins to listen there within `seconds`.

    Args:
        address: `host:port`.
        seconds: how long to try.

    Raises:
        ConnectionError: if no process listens at the address by then.
    """
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + seconds
    while True:
        try:
            return Connection(socket.create_connection((host, int(port)), timeout=None))
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"nobody listens at {address}") from error
            # The process that is to listen there may still import its libraries.
            time.sleep(RETRY_SECONDS)


def listen(address: str, handle: Callable[[Connection], None]) -> socket.socket:
    """Listen at `address` (`host:port`), and hand each connection to `handle` in a thread of its own.

    Returns the listening socket, which the caller closes. A `ConnectionError` of `handle` is ignored. Any
    other error is printed and ends the process, since the other end would wait for an answer for ever.
    """
    host, port = address.rsplit(":", 1)
    listening = socket.create_server((host, int(port)))

    def serve(connection: Connection) -> None:
        try:
            handle(connection)
        except ConnectionError:
            # The other end has gone; `handle` has done by now what follows from that.
            pass
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        finally:
            connection.close()

    def accept() -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(Connection(accepted),), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listening

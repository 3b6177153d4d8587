"""Messages between processes over TCP: a kind, figures as JSON, arrays as their bytes.

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
    """What was sent."""

    kind: str
    figures: dict[str, Any]
    arrays: tuple[np.ndarray, ...]


class Connection:
    """One end of a TCP connection; used by one thread at a time."""

    def __init__(self, given: socket.socket) -> None:
        given.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = given

    def send(self, kind: str, arrays: Sequence[np.ndarray] = (), **figures: Any) -> None:
        """Returns once all of it is on its way; arrays may then be changed."""
        # Not `ascontiguousarray`, which makes one element of a number.
        arrays = [np.asarray(array, order="C") for array in arrays]
        described = [[array.dtype.name, array.shape] for array in arrays]
        head = json.dumps({"kind": kind, "figures": figures, "arrays": described}).encode()
        self._socket.sendall(HEAD.pack(len(head)) + head)
        for array in arrays:
            self._socket.sendall(memoryview(array).cast("B") if array.size else b"")

    def receive(self) -> Message:
        """The next message.

        Raises:
            ConnectionError: if the other end has gone, or speaks something else.
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
                self._exactly(memoryview(array).cast("B"))
            arrays.append(array)
        return Message(head["kind"], head["figures"], tuple(arrays))

    def ask(self, kind: str, arrays: Sequence[np.ndarray] = (), **figures: Any) -> Message:
        """Sends a message and waits for the next one."""
        self.send(kind, arrays, **figures)
        return self.receive()

    def close(self) -> None:
        """The other end's `receive` raises then."""
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
    """To who listens at `host:port`, or will within `seconds`.

    Raises:
        ConnectionError: if nobody does.
    """
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + seconds
    while True:
        try:
            return Connection(socket.create_connection((host, int(port)), timeout=None))
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"nobody listens at {address}") from error
            # Who listens there may still import its libraries.
            time.sleep(RETRY_SECONDS)


def serve(address: str, attend: Callable[[Connection], None]) -> socket.socket:
    """Listens at `host:port`; `attend` is given each connection, in a thread of its own, until it ends.

    Any error of `attend` but a `ConnectionError` ends the process: whoever waits for an answer would wait
    for ever, and the log alone would know why.
    """
    host, port = address.rsplit(":", 1)
    listening = socket.create_server((host, int(port)))

    def one(connection: Connection) -> None:
        try:
            attend(connection)
        except ConnectionError:
            # Whoever it was has gone; `attend` has seen to what that means.
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
                given, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(Connection(given),), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listening

"""Send messages between processes over TCP: a kind, figures as JSON, arrays as their bytes.

A connection begins with the run's token, without which it is ended. Nothing that arrives is executed or
unpickled. A message is

    4 bytes    length of the head, big-endian
    head       {"kind": ..., "figures": {...}, "arrays": [[dtype, shape], ...]} as UTF-8
    arrays     one after the other, in C order and this machine's byte order

What the head announces is examined before memory is taken for it. What no process of the run sends ends its
own connection, and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from src.run import variables

HEAD = struct.Struct(">I")
MOST_HEAD_BYTES = 1 << 20
DTYPES = ("float16", "float32", "float64", "int16", "int32", "int64", "uint8")
RETRY_SECONDS = 0.05
# No array is larger than the machine's memory.
MOST_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class WrongMessage(ConnectionError):
    """The error for something that no process of the run sends; its connection is ended."""


@dataclass(frozen=True)
class Head:
    """The head of a message, which announces the rest: its kind, named figures, and arrays.

    Attributes:
        kind, figures: those of the message.
        arrays: type and shape of each array.
    """

    kind: str
    figures: dict[str, Any]
    arrays: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def parse(cls, received: bytes) -> Head:
        """Read a head.

        Raises:
            WrongMessage: for something else, or arrays of a type that isn't sent or too large.
        """
        try:
            head = json.loads(received)
            kind, figures, arrays = head["kind"], head["figures"], head["arrays"]
            described = tuple((name, tuple(shape)) for name, shape in arrays)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WrongMessage("a head that is none of ours") from error
        if not (isinstance(kind, str) and isinstance(figures, dict)):
            raise WrongMessage("a head that is none of ours")
        if wrong := [name for name, _ in described if name not in DTYPES]:
            raise WrongMessage(f"arrays of {wrong[0]} are not sent")
        if not all(is_count(size) for _, shape in described for size in shape):
            raise WrongMessage("an array of no shape")
        if sum(np.dtype(name).itemsize * math.prod(shape) for name, shape in described) > MOST_BYTES:
            raise WrongMessage("arrays larger than this machine's memory")
        return cls(kind, figures, described)


# A function that raises `WrongMessage` for a head that isn't expected.
Examine = Callable[[Head], None]


def is_count(value: object) -> bool:
    """Return whether a value that arrived is a whole number from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: object) -> bool:
    """Return whether a value that arrived is a number, which may be infinite or none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def anything(head: Head) -> None:
    """Accept every head (an `Examine`)."""


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

    def receive(self, examine: Examine = anything) -> Message:
        """Wait for the next message and return it.

        Args:
            examine: called with the head, before memory is taken for the arrays.

        Raises:
            ConnectionError: if the other end has closed the connection.
            WrongMessage: if it sent something that is no message, or what `examine` refuses.
        """
        (length,) = HEAD.unpack(self._exactly(bytearray(HEAD.size)))
        if length > MOST_HEAD_BYTES:
            raise WrongMessage(f"a head of {length} bytes is none of ours")
        head = Head.parse(bytes(self._exactly(bytearray(length))))
        examine(head)
        arrays = []
        for name, shape in head.arrays:
            try:
                array = np.empty(shape, name)
            except (ValueError, MemoryError) as error:
                raise WrongMessage(f"an array of shape {shape}") from error
            if array.size:
                self._exactly(array.data.cast("B"))
            arrays.append(array)
        return Message(head.kind, head.figures, tuple(arrays))

    def ask(self, kind: str, arrays: Sequence[np.ndarray] = (), **figures: Any) -> Message:
        """Send a message as `send` does, wait for the answer and return the answer."""
        self.send(kind, arrays, **figures)
        return self.receive()

    def receive_token(self) -> bytes:
        """Wait for the token with which a connection begins, and return it."""
        return bytes(self._exactly(bytearray(variables.TOKEN_CHARACTERS)))

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
            connected = socket.create_connection((host, int(port)), timeout=None)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"nobody listens at {address}") from error
            # The process that is to listen there may still import its libraries.
            time.sleep(RETRY_SECONDS)
        else:
            connected.sendall(variables.token().encode())
            return Connection(connected)

"""Messages arrive as they were sent; what is no message is refused, and who has gone is noticed."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from src.launch.local.hosts import LocalHosts
from src.runtime.common import messages
from src.runtime.common.listener import Listener
from src.runtime.common.messages import Connection


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and the bare socket at its other end."""
    listening = socket.create_server(("127.0.0.1", 0))
    bare = socket.create_connection(listening.getsockname())
    accepted, _ = listening.accept()
    yield Connection(accepted), bare
    for each in (accepted, bare, listening):
        each.close()


def test_a_message_arrives_as_it_was_sent() -> None:
    address = LocalHosts().free_address("")
    arrays = [np.arange(6, dtype="float32").reshape(2, 3), np.array(7, "int64"), np.empty((0, 4))]

    def echo(connection: Connection) -> None:
        while True:
            message = connection.receive()
            connection.send(message.kind, message.arrays, **message.figures)

    listening = Listener(address, echo)
    connection = messages.connect(address, seconds=5)
    # A column isn't contiguous; two messages follow each other.
    for sent in (arrays, [arrays[0][:, 1], np.zeros(3_000_000)]):
        reply = connection.ask("values", sent, clock=3, bound=None)
        assert (reply.kind, reply.figures) == ("values", {"clock": 3, "bound": None})
        for a, b in zip(reply.arrays, sent, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_array_equal(a, b)
    connection.close()
    listening.close()


def test_the_server_learns_that_somebody_has_gone() -> None:
    address = LocalHosts().free_address("")
    gone = threading.Event()

    def attend(connection: Connection) -> None:
        try:
            connection.receive()
        finally:
            gone.set()

    listening = Listener(address, attend)
    messages.connect(address, seconds=5).close()
    assert gone.wait(5)
    listening.close()


@pytest.mark.parametrize(
    ("arrays", "length", "fragment"),
    [([["object", [1]]], None, "object"), ([], 2**31, "head of 2147483648 bytes")],
    ids=["pickled", "oversized"],
)
def test_what_is_no_message_is_refused(
    pair: tuple[Connection, socket.socket], arrays: list, length: int | None, fragment: str
) -> None:
    connection, bare = pair
    head = json.dumps({"kind": "push", "figures": {}, "arrays": arrays}).encode()
    bare.sendall(struct.pack(">I", length or len(head)) + head)
    with pytest.raises(ConnectionError, match=fragment):
        connection.receive()


def test_nobody_listens() -> None:
    address = LocalHosts().free_address("")
    with pytest.raises(ConnectionError, match=f"nobody listens at {address}"):
        messages.connect(address, seconds=0.2)

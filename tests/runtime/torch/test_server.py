"""Parameter servers over TCP: what each receives, and what comes back of all of them together."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import asdict

import pytest
import torch

from src.launch.local.hosts import LocalHosts
from src.run import variables
from src.runtime.common import listener, messages
from src.runtime.common.learning_rate import LearningRate
from src.runtime.torch.parameter_server.server import Server, ServerGroup

ELEMENTS = 7
ADAM = {"name": "adam", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "clip_norm": None}
RATE = asdict(LearningRate(0.1, 0.1, 0, "constant", 1))


@contextlib.contextmanager
def serving() -> Iterator[list[str]]:
    """The addresses of two servers."""
    hosts = LocalHosts()
    free = [hosts.free_address("") for _ in range(2)]
    servers = [Server(address) for address in free]
    yield free
    ServerGroup(free).close()
    assert all(server.closed.wait(5) for server in servers)


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    """Of two servers, which end with the test."""
    with serving() as free:
        yield free


def begun(
    addresses: list[str],
    *,
    workers: int = 1,
    bound: float | None = None,
    values: torch.Tensor | None = None,
    **entries: torch.Tensor,
) -> ServerGroup:
    """The coordinator's."""
    servers = ServerGroup(
        addresses, workers=workers, bound=bound, sum_per_clock=False, optimizer=ADAM, rate=RATE
    )
    servers.initialize(torch.zeros(ELEMENTS) if values is None else values, entries)
    return servers


def entered(addresses: list[str], rank: int) -> ServerGroup:
    """A worker's."""
    servers = ServerGroup(addresses)
    servers.register(rank)
    return servers


def test_an_optimizers_counter_is_a_number_again_and_goes_on(addresses: list[str]) -> None:
    all_of_it, worker = begun(addresses), entered(addresses, 0)
    gradient = torch.arange(1.0, ELEMENTS + 1)
    alone = torch.zeros(ELEMENTS)
    optimizer = torch.optim.Adam([alone], lr=0.1)
    for _ in range(2):
        values, versions = worker.fetch()
        torch.testing.assert_close(values, alone)
        worker.push(gradient, versions, (), 0)
        alone.grad = gradient
        optimizer.step()
    values, entries, _ = all_of_it.state()
    torch.testing.assert_close(values, alone)
    assert {name: entry.shape for name, entry in entries.items()} == {
        "step": (),
        "exp_avg": (ELEMENTS,),
        "exp_avg_sq": (ELEMENTS,),
    }
    assert entries["step"] == 2
    # As a checkpoint gives them back to servers that have been started again.
    with serving() as again:
        begun(again, values=values, **entries)
        worker = entered(again, 0)
        _, versions = worker.fetch()
        worker.push(gradient, versions, (), 0)
        optimizer.step()
        torch.testing.assert_close(worker.fetch()[0], alone)


def test_who_has_come_back_is_not_taken_for_who_has_gone(addresses: list[str]) -> None:
    begun(addresses, workers=2, bound=0)
    before = [messages.connect(address, seconds=5) for address in addresses]
    for connection in before:
        assert connection.ask("register", rank=0, clock=0).kind == "done"
    other, after = entered(addresses, 1), entered(addresses, 0)
    for connection in before:
        connection.close()
    _, versions = other.fetch()
    other.push(torch.ones(ELEMENTS), versions, (), 0)
    waited = threading.Event()
    thread = threading.Thread(target=lambda: (other.fetch(), waited.set()), daemon=True)
    thread.start()
    assert not waited.wait(0.3)
    _, versions = after.fetch()
    after.push(torch.ones(ELEMENTS), versions, (), 0)
    assert waited.wait(5)


def shown(address: str, token: str | None = None) -> socket.socket:
    """A connection of somebody who shows a token, by default the run's."""
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.sendall((variables.token() if token is None else token).encode())
    return connection


def is_ended(connection: socket.socket) -> bool:
    """Whether the server has ended a connection without an answer."""
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


def framed(head: object) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack(">I", len(text)) + text


def request(kind: str, *arrays: object, **figures: object) -> bytes:
    return framed({"kind": kind, "figures": figures, "arrays": arrays})


REGISTER = request("register", rank=0, clock=0)
PUSHED = {"version": 0, "items": [], "step": 0}
# The first server's part of the parameters.
PART = ["float32", [3]]
FORGED = {
    "no object": framed([1, 2]),
    "no JSON": framed(b"{"),
    "nested": framed(b"[" * 100_000),
    "no figures": framed({"kind": "push"}),
    "huge head": struct.pack(">I", 2**31),
    "unknown": request("shutdown"),
    "terabytes": request("initialize", ["float64", [2**40]], entries=[]),
    "overflowing": request("initialize", ["float32", [2**62, 4]], entries=[]),
    "negative": request("initialize", ["float32", [-1]], entries=[]),
    "second start": request("initialize", PART, entries=[]) + bytes(12),
    "no worker": request("push", PART, **PUSHED) + bytes(12),
    "rank": request("register", rank=7, clock=0),
    "truth": request("register", rank=True, clock=0),
    "text": request("register", rank=0, clock="0"),
    "resting": request("rest", ranks=[5]),
    "arrays": request("drain", PART) + bytes(12),
    "shape": REGISTER + request("push", ["float32", [4]], **PUSHED),
    "column": REGISTER + request("push", ["float32", [3, 1]], **PUSHED),
    "type": REGISTER + request("push", ["float64", [3]], **PUSHED),
    "twice": REGISTER + request("push", PART, PART, **PUSHED),
    "items": REGISTER + request("push", PART, **{**PUSHED, "items": [1]}),
    "future": REGISTER + request("push", PART, **{**PUSHED, "version": 5}),
    "norm": request("norm", clock=0, squares="0"),
}


@pytest.mark.parametrize("sent", FORGED.values(), ids=FORGED.keys())
def test_a_wrong_frame_ends_its_connection_and_changes_nothing(sent: bytes, addresses: list[str]) -> None:
    coordinator = begun(addresses, workers=1, values=torch.arange(ELEMENTS) / 1.0)
    forger = shown(addresses[0])
    forger.sendall(sent)
    if sent.startswith(REGISTER):
        answer = messages.Connection(forger).receive()
        assert answer.kind == "done"
    assert is_ended(forger)
    values, entries, _ = coordinator.state()
    torch.testing.assert_close(values, torch.arange(ELEMENTS) / 1.0)
    assert entries == {}


@pytest.mark.parametrize("token", ["", "0" * 64, "\xff" * 32], ids=["none", "wrong", "no text"])
def test_who_hasnt_the_token_pushes_nothing(token: str, addresses: list[str]) -> None:
    coordinator, worker = begun(addresses), entered(addresses, 0)
    forger = shown(addresses[0], token)
    forger.sendall(REGISTER + request("push", PART, **PUSHED) + struct.pack("3f", 1.0, 2.0, 3.0))
    assert is_ended(forger)
    values, versions = worker.fetch()
    torch.testing.assert_close(values, torch.zeros(ELEMENTS))
    assert versions == [0, 0]
    # The worker that the forger wanted to be isn't taken for one that has gone.
    worker.push(torch.ones(ELEMENTS), versions, (), 0)
    assert worker.fetch()[1] == [1, 1]
    assert coordinator.state()[0].abs().sum() > 0


def test_who_says_nothing_holds_nobody_up(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "TOKEN_SECONDS", 0.5)
    silent = [shown(addresses[0], "") for _ in range(20)]
    begun(addresses)
    entered(addresses, 0).fetch()
    assert all(is_ended(each) for each in silent)

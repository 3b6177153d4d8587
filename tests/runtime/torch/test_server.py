"""Parameter servers over TCP: what each receives, and what comes back of all of them together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import asdict

import pytest
import torch

from src.launch.tf_workers import free_addresses
from src.runtime.common.learning_rate import LearningRate
from src.runtime.torch.parameter_server.server import Server, ServerGroup

ELEMENTS = 7
ADAM = {"name": "adam", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "clip_norm": None}
RATE = asdict(LearningRate(0.1, 0.1, 0, "constant", 1))


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    """Of two servers, which end with the test."""
    free = free_addresses(2)
    servers = [Server(address) for address in free]
    yield free
    ServerGroup(free).close()
    assert all(server.closed.wait(5) for server in servers)


def begun(
    addresses: list[str], *, workers: int = 1, bound: float | None = None, **entries: torch.Tensor
) -> ServerGroup:
    """The coordinator's."""
    servers = ServerGroup(
        addresses, workers=workers, bound=bound, sum_per_clock=False, optimizer=ADAM, rate=RATE
    )
    servers.initialize(torch.zeros(ELEMENTS), entries)
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
    # As a checkpoint gives them back.
    all_of_it.initialize(values, entries)
    values, versions = entered(addresses, 0).fetch()
    worker = entered(addresses, 0)
    worker.push(gradient, versions, (), 0)
    optimizer.step()
    torch.testing.assert_close(worker.fetch()[0], alone)


def test_who_has_come_back_is_not_taken_for_who_has_gone(addresses: list[str]) -> None:
    begun(addresses, workers=2, bound=0)
    before, other = entered(addresses, 0), entered(addresses, 1)
    after = entered(addresses, 0)
    for connection in before._all:
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

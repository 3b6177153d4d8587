"""A parameter server process and, for the others, all servers together as one vector of parameters.

Each server has a contiguous part of the flattened parameters, all parts of one size. What it is asked:

    begin    the coordinator's: values, optimizer, bound            -> done
    slowest                                                         -> clock
    enter    rank, clock                                            -> done
    fetch                           waits as the bound demands      -> values, version
    push     version, tickets (each with its own version), gradient -> staleness
    rest     the coordinator's: ranks                               -> done
    drain                                                           -> done
    taken                                                           -> tickets and their staleness
    state                                                           -> values, entries, widest_gap
    end                                                             -> done
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from src.data import order
from src.runtime import wire
from src.runtime.torch.basics import optimizer_of
from src.runtime.torch.shard import Push, Shard
from src.runtime.wire import Connection

# Until the other processes have imported their libraries and listen.
CONNECT_SECONDS = 120.0


class Server:
    """Serves one shard at `address` until the process ends."""

    def __init__(self, address: str) -> None:
        self._begun = threading.Event()
        # Worker -> its present connection.
        self._entered: dict[int, Connection] = {}
        self._shard: Shard
        # Once the coordinator says so.
        self.ended = threading.Event()
        self._listening: socket.socket = wire.serve(address, self._attend)

    def _attend(self, connection: Connection) -> None:
        worker: int | None = None
        try:
            while True:
                asked = connection.receive()
                if asked.kind == "begin":
                    self._begin(asked.arrays, **asked.figures)
                else:
                    self._begun.wait()
                if asked.kind == "enter":
                    worker = int(asked.figures["rank"])
                    self._entered[worker] = connection
                self._answer(connection, asked, worker)
        finally:
            # It may have come back before its end was noticed.
            if worker is not None and self._entered[worker] is connection:
                self._shard.leave(worker)

    def _begin(
        self,
        arrays: Sequence[np.ndarray],
        *,
        workers: int,
        bound: float | None,
        together: bool,
        optimizer: Mapping[str, Any],
        entries: Sequence[str],
    ) -> None:
        values, *kept = (torch.from_numpy(array) for array in arrays)
        self._shard = Shard(
            values,
            lambda given: optimizer_of(optimizer, given),
            workers=workers,
            bound=math.inf if bound is None else bound,
            together=together,
        )
        self._shard.restore(values, dict(zip(entries, kept, strict=True)))
        self._begun.set()

    def _answer(self, connection: Connection, asked: wire.Message, worker: int | None) -> None:
        shard, figures = self._shard, asked.figures
        if asked.kind == "fetch":
            assert worker is not None
            values, version = shard.fetch(worker)
            connection.send("values", [values.numpy()], version=version)
            return
        if asked.kind == "taken":
            connection.send("taken", taken=shard.taken())
            return
        if asked.kind == "state":
            values, entries = shard.state()
            arrays = [values.numpy(), *(entry.numpy() for entry in entries.values())]
            connection.send("state", arrays, entries=list(entries), widest_gap=shard.widest_gap)
            return
        if asked.kind == "slowest":
            connection.send("clock", clock=shard.slowest())
            return
        if asked.kind == "push":
            assert worker is not None
            gradient = torch.from_numpy(asked.arrays[0])
            tickets = tuple((ticket, version) for ticket, version in figures["tickets"])
            pushed = Push(worker, figures["version"], gradient, tickets)
            connection.send("done", staleness=shard.push(pushed))
            return
        if asked.kind == "enter":
            shard.enter(figures["rank"], figures["clock"])
        elif asked.kind == "rest":
            shard.rest(figures["ranks"])
        elif asked.kind == "drain":
            shard.drain()
        elif asked.kind == "end":
            self._listening.close()
            self.ended.set()
        connection.send("done")


class Servers:
    """All servers, asked at once; used by one thread. A `Store`, to the coordinator."""

    def __init__(self, addresses: Sequence[str], **rule: Any) -> None:
        """`rule` is the coordinator's to give: `begin` hands it to each server."""
        self.welcome: Mapping[str, Any] = {}
        self._rule = rule
        self._all = [wire.connect(address, seconds=CONNECT_SECONDS) for address in addresses]

    def begin(self, values: Tensor, entries: Mapping[str, Tensor]) -> None:
        """Gives each server its part of the values and of the optimizer's entries [elements] or []."""
        for number, server in enumerate(self._all):
            part = order.shard(len(values), number, len(self._all))
            kept = [entry[part] if entry.dim() else entry for entry in entries.values()]
            arrays = [tensor.numpy() for tensor in (values[part], *kept)]
            server.send("begin", arrays, entries=list(entries), **self._rule)
        self._done()

    def enter(self, rank: int) -> None:
        """Takes part as worker `rank`, from where the slowest one is."""
        for server in self._all:
            server.send("slowest")
        clock = max(server.receive().figures["clock"] for server in self._all)
        for server in self._all:
            server.send("enter", rank=rank, clock=clock)
        self._done()

    def fetch(self) -> tuple[Tensor, list[int]]:
        """What the next step is computed from: values [elements], and each server's version of them."""
        for server in self._all:
            server.send("fetch")
        found = [server.receive() for server in self._all]
        values = torch.cat([torch.from_numpy(message.arrays[0]) for message in found])
        return values, [message.figures["version"] for message in found]

    def push(
        self, gradient: Tensor, versions: Sequence[int], tickets: Sequence[tuple[int, int]]
    ) -> int | None:
        """A gradient [elements] of the values that had these versions, of these steps, each with the first
        server's version at its fetch; its staleness, as that server knows it already."""
        flat = gradient.numpy()
        for number, (server, version) in enumerate(zip(self._all, versions, strict=True)):
            part = order.shard(len(flat), number, len(self._all))
            # The first one's word counts.
            own = tickets if number == 0 else ()
            server.send("push", [flat[part]], version=version, tickets=list(own))
        first, *_ = (server.receive() for server in self._all)
        staleness: int | None = first.figures["staleness"]
        return staleness

    def taken(self) -> list[tuple[int, int]]:
        """(ticket, staleness) of the steps that have taken effect since this was last asked, by one."""
        return [(ticket, stale) for ticket, stale in self._all[0].ask("taken").figures["taken"]]

    def rest(self, ranks: Sequence[int]) -> None:
        """There is nothing left for these workers to do."""
        for server in self._all:
            server.send("rest", ranks=list(ranks))
        self._done()

    def drain(self) -> None:
        """All pushes take effect."""
        for server in self._all:
            server.send("drain")
        self._done()

    def state(self) -> tuple[Tensor, dict[str, Tensor], Mapping[str, Any]]:
        """Values, the optimizer's entries, and the widest clock gap at a fetch."""
        found = [server.ask("state") for server in self._all]
        parts = [[torch.from_numpy(array) for array in message.arrays] for message in found]
        values, *entries = (
            torch.cat(same) if same[0].dim() else same[0] for same in zip(*parts, strict=True)
        )
        gap = max(message.figures["widest_gap"] for message in found)
        named = dict(zip(found[0].figures["entries"], entries, strict=True))
        return values, named, {"clock_gap_max": gap}

    def end(self) -> None:
        """Nothing will be asked any more."""
        for server in self._all:
            server.send("end")
        self._done()

    def _done(self) -> None:
        for server in self._all:
            assert server.receive().kind == "done"

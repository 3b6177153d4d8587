"""Serve parameters from a process, and use all servers together as one vector of parameters.

Each server has a contiguous part of the flattened parameters, and all parts are of one size, give or take one
element. The requests of the coordinator (c), of workers (w) and of servers (s), with the servers' answers:

    initialize  c   values, optimizer, learning rate, bound                 -> done
    slowest     w                                                           -> clock of the slowest worker
    register    w   rank, clock                                             -> done
    fetch       w   (waits until the worker's clock is within the bound)    -> values, version
    push        w   version, work items (each with its version), step,
                    gradient, maybe compressed (`pushes.py`)                -> staleness
    norm        s   clock, squared norm of a server's part (of server 0)    -> that of the whole gradient
    rest        c   ranks                                                   -> done
    drain       c                                                           -> done
    applied     c                                                           -> work items and their staleness
    state       c                                                           -> values, entries, widest_gap
    close       c                                                           -> done
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from src.data import order
from src.measure.rank_record import RankRecord
from src.runtime.common import messages
from src.runtime.common.learning_rate import LearningRate
from src.runtime.common.listener import Listener
from src.runtime.common.messages import Connection, Head, Message, WrongMessage
from src.runtime.torch.parameter_server import norm_exchange, pushes, requests
from src.runtime.torch.parameter_server.parameter_shard import ParameterShard, Push
from src.runtime.torch.parameter_server.pushes import Parts
from src.runtime.torch.update_rule import make_optimizer

# Seconds for which a process tries to connect: the others must import their libraries before they listen.
CONNECT_SECONDS = 120.0


class Server:
    """A parameter server, which serves one parameter shard until the process ends.

    Attributes:
        closed: set once the coordinator has announced that no more requests will come.
    """

    def __init__(self, address: str) -> None:
        """Listen at `address` (`host:port`)."""
        self._initializing = threading.Lock()
        self._initialized = threading.Event()
        # Worker -> its present connection.
        self._registered: dict[int, Connection] = {}
        self._shard: ParameterShard
        self._compression = "none"
        # From an update's clock and the squared norm of this server's part of its gradient to that of all.
        self._total: Callable[[int, float], float] = lambda clock, squares: squares
        self.closed = threading.Event()
        self._listening = Listener(address, self._handle)

    def _handle(self, connection: Connection) -> None:
        """Answer the requests of the process at the other end of `connection` until that has gone."""
        worker: int | None = None

        def examine(head: Head) -> None:
            """Raise `WrongMessage` for a request that no process makes; wait until there are parameters."""
            if head.kind == "initialize" and not self._initialized.is_set():
                requests.examine_initial(head)
            else:
                self._initialized.wait()
                requests.examine(head, self._shard, worker, self._compression)

        try:
            while True:
                request = connection.receive(examine)
                if request.kind == "initialize":
                    with self._initializing:
                        self._initialize_once(request)
                if request.kind == "register":
                    worker = request.figures["rank"]
                    self._registered[worker] = connection
                self._answer(connection, request, worker)
        finally:
            # The worker may have connected again before the end of this connection was noticed.
            if worker is not None and self._registered[worker] is connection:
                self._shard.leave(worker)

    def _initialize_once(self, request: Message) -> None:
        """Set the parameters as the coordinator asks, for the first and only time.

        Raises:
            WrongMessage: for a second time, or a rule that is none.
        """
        if self._initialized.is_set():
            raise WrongMessage("parameters that are there already")
        try:
            self._initialize(request.arrays, **request.figures)
        except (TypeError, KeyError, ValueError, AttributeError, RuntimeError) as error:
            raise WrongMessage(f"a rule that is none: {error}") from error

    def _initialize(
        self,
        arrays: Sequence[np.ndarray],
        *,
        workers: int,
        bound: float | None,
        sum_per_clock: bool,
        optimizer: Mapping[str, Any],
        rate: Mapping[str, Any],
        entries: Sequence[str],
        number: int,
        servers: Sequence[str],
        compression: str = "none",
    ) -> None:
        self._compression = compression
        clips = optimizer["clip_norm"] is not None and len(servers) > 1
        if clips and number == 0:
            self._total = norm_exchange.NormHub(len(servers))
        elif clips:
            self._total = norm_exchange.ask(servers[0], CONNECT_SECONDS)
        values, *entry_values = (torch.from_numpy(array) for array in arrays)
        self._shard = ParameterShard(
            values,
            lambda parameters: make_optimizer(optimizer, parameters),
            workers=workers,
            bound=math.inf if bound is None else bound,
            sum_per_clock=sum_per_clock,
            rate=LearningRate(**rate),
            clip_norm=optimizer["clip_norm"],
            total=self._total,
        )
        self._shard.restore(values, dict(zip(entries, entry_values, strict=True)))
        self._initialized.set()

    def _answer(self, connection: Connection, request: Message, worker: int | None) -> None:
        shard, figures = self._shard, request.figures
        if request.kind == "fetch":
            assert worker is not None
            values, version = shard.fetch(worker)
            connection.send("values", [values.numpy()], version=version)
            return
        if request.kind == "applied":
            connection.send("applied", applied=shard.applied())
            return
        if request.kind == "state":
            values, entries = shard.state()
            arrays = [values.numpy(), *(entry.numpy() for entry in entries.values())]
            connection.send("state", arrays, entries=list(entries), widest_gap=shard.widest_gap)
            return
        if request.kind == "norm":
            connection.send("norm", total=self._total(figures["clock"], figures["squares"]))
            return
        if request.kind == "slowest":
            connection.send("clock", clock=shard.slowest())
            return
        if request.kind == "push":
            assert worker is not None
            gradient = pushes.gradient_of(self._compression, request.arrays, shard.layout)
            items = tuple((item, version) for item, version in figures["items"])
            push = Push(worker, figures["version"], gradient, items, figures["step"])
            connection.send("done", staleness=shard.push(push))
            return
        if request.kind == "register":
            shard.register(figures["rank"], figures["clock"])
        elif request.kind == "rest":
            shard.rest(figures["ranks"])
        elif request.kind == "drain":
            shard.drain()
        elif request.kind == "close":
            self._listening.close()
            self.closed.set()
        connection.send("done")


class ServerGroup:
    """A client of all servers, which shows them as one vector of parameters; used by one thread.

    The coordinator uses it as its `ParameterStore`, and each worker has one to fetch and push.
    """

    def __init__(
        self, addresses: Sequence[str], compress: Callable[[Tensor], Parts] = pushes.whole, **rule: Any
    ) -> None:
        """Connect to the servers at `addresses`.

        Args:
            addresses: `host:port` of each server, in the order of their shards.
            compress: writes a worker's gradient as it is pushed.
            **rule: how pushes take effect, which only the coordinator gives: `workers`, `bound` (`None` for
                no bound), `sum_per_clock`, `optimizer` as in the configuration, the fields `rate` of a
                `LearningRate`, and `compression` of pushes.
        """
        self.welcome: Mapping[str, Any] = {}
        self._rule = rule
        self._compress = compress
        self._addresses = list(addresses)
        self._all = [messages.connect(address, seconds=CONNECT_SECONDS) for address in addresses]

    def initialize(self, values: Tensor, entries: Mapping[str, Tensor]) -> None:
        """Send each server its part of the initial values [elements] and of the optimizer's entries.

        Args:
            values: all parameters [elements].
            entries: the optimizer's entries by name, each [elements] or, if it is a counter, [].
        """
        for number, server in enumerate(self._all):
            part = order.even_slice(len(values), number, len(self._all))
            entry_parts = [entry[part] if entry.dim() else entry for entry in entries.values()]
            arrays = [tensor.numpy() for tensor in (values[part], *entry_parts)]
            place = {"number": number, "servers": self._addresses}
            server.send("initialize", arrays, entries=list(entries), **place, **self._rule)
        self._wait_until_done()

    def register(self, rank: int) -> None:
        """Register as worker `rank` with all servers, at the clock of the slowest worker."""
        for server in self._all:
            server.send("slowest")
        clock = max(server.receive().figures["clock"] for server in self._all)
        for server in self._all:
            server.send("register", rank=rank, clock=clock)
        self._wait_until_done()

    def fetch(self) -> tuple[Tensor, list[int]]:
        """Fetch all parameters [elements], and each server's version of its part."""
        for server in self._all:
            server.send("fetch")
        answers = [server.receive() for server in self._all]
        values = torch.cat([torch.from_numpy(answer.arrays[0]) for answer in answers])
        return values, [answer.figures["version"] for answer in answers]

    def push(
        self, gradient: Tensor, versions: Sequence[int], items: Sequence[tuple[int, int]], step: int
    ) -> int | None:
        """Push a gradient; return its staleness, or `None` if the gradient takes effect later.

        Args:
            gradient: the gradient of all parameters [elements].
            versions: each server's version of the values from which the gradient was computed.
            items: the work items whose gradients it sums, each with the first server's version at its fetch.
            step: global batches before that of the gradient.
        """
        part_of = self._compress(gradient)
        for number, (server, version) in enumerate(zip(self._all, versions, strict=True)):
            part = order.even_slice(len(gradient), number, len(self._all))
            # The first server alone reports the staleness of work items.
            reported = list(items) if number == 0 else []
            server.send("push", part_of(part), version=version, items=reported, step=step)
        first, *_ = (server.receive() for server in self._all)
        staleness: int | None = first.figures["staleness"]
        return staleness

    def applied(self) -> list[tuple[int, int]]:
        """Return (work item, staleness) of each step that took effect since the last call of this method."""
        return [(item, staleness) for item, staleness in self._all[0].ask("applied").figures["applied"]]

    def rest(self, ranks: Sequence[int]) -> None:
        """Let no worker wait for the workers `ranks`, which have nothing left to do."""
        for server in self._all:
            server.send("rest", ranks=list(ranks))
        self._wait_until_done()

    def drain(self) -> None:
        """Have all servers apply their pending pushes."""
        for server in self._all:
            server.send("drain")
        self._wait_until_done()

    def state(self) -> tuple[Tensor, dict[str, Tensor], RankRecord]:
        """Return the values [elements], the optimizer's entries by name, and the fact `clock_gap_max`."""
        answers = [server.ask("state") for server in self._all]
        parts = [[torch.from_numpy(array) for array in answer.arrays] for answer in answers]
        values, *entries = (
            torch.cat(same) if same[0].dim() else same[0] for same in zip(*parts, strict=True)
        )
        gap = max(answer.figures["widest_gap"] for answer in answers)
        named = dict(zip(answers[0].figures["entries"], entries, strict=True))
        return values, named, {"clock_gap_max": gap}

    def close(self) -> None:
        """Tell the servers that no more requests will come."""
        for server in self._all:
            server.send("close")
        self._wait_until_done()

    def _wait_until_done(self) -> None:
        for server in self._all:
            assert server.receive().kind == "done"

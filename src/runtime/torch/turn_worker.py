"""Workers that take turns: a fetch, a gradient, a push; see `strategies/torch`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from src.runtime import wire
from src.runtime.torch.replica import Replica
from src.runtime.torch.server import CONNECT_SECONDS, Servers
from src.runtime.torch.shared_values import SharedValues
from src.runtime.wire import Message
from src.worker import Run


class Worker(ABC):
    """Does what the coordinator hands it."""

    def __init__(self, run: Run, coordinator: str) -> None:
        self._run = run
        self._replica = Replica(run)
        self._coordinator = wire.connect(coordinator, seconds=CONNECT_SECONDS)

    def work(self, came: Callable[[], object] = lambda: None) -> None:
        """Until the coordinator lets it go; calls `came` once it and the servers know of this worker."""
        self.enter()
        told = self._coordinator.ask("here", rank=self._run.rank)
        came()
        # A run that is resumed, or that this worker comes back to, has moved them.
        self._replica.load_buffers(told.arrays)
        self.welcome(told)
        while (asked := self._coordinator.receive()).kind != "end":
            arrays, figures = self.answer(asked)
            self._coordinator.send("done", arrays, **figures)
        self._coordinator.send("done")

    def answer(self, asked: Message) -> tuple[Sequence[np.ndarray], dict[str, float]]:
        """Does what it is asked; arrays and figures to send back."""
        if asked.kind == "buffers":
            return self._replica.buffers(), {}
        if asked.kind == "score":
            return [self._score(asked)], {}
        if asked.kind == "push":
            self.push()
            return [], {}
        assert asked.kind == "train"
        return [], self.train(asked.arrays[0], asked.figures["ticket"])

    def train(self, indices: np.ndarray, ticket: int) -> dict[str, float]:
        """One step on these samples; loss, correct answers and times, and staleness if it is known."""
        raise NotImplementedError

    @abstractmethod
    def current(self) -> Tensor:
        """The parameters [elements] to evaluate."""

    def enter(self) -> None:  # noqa: B027
        """Before the coordinator is told that it is there."""

    def welcome(self, told: Message) -> None:  # noqa: B027
        """What it was told to that."""

    def push(self) -> None:  # noqa: B027
        """Keeps nothing to itself."""

    def _score(self, asked: Message) -> np.ndarray:
        """Of the parameters of all and the buffers given; its own are there again afterwards."""
        parameters, buffers = self._replica.parameters(), [own.copy() for own in self._replica.buffers()]
        self._replica.load(self.current())
        self._replica.load_buffers(asked.arrays)
        found = self._replica.score(asked.figures["first"], asked.figures["last"])
        self._replica.load(parameters)
        self._replica.load_buffers(tuple(buffers))
        return found


class ServedWorker(Worker):
    """Under parameter servers; with steps of its own between fetches in some modes."""

    def __init__(self, run: Run, cluster: Mapping[str, Sequence[str]]) -> None:
        super().__init__(run, cluster["coordinator"][0])
        options = run.config.strategy
        downpour = options["mode"] == "downpour"
        self._merges = options["mode"] == "shat"
        self._fetch_every = options["fetch_every"] if downpour else 1
        self._push_every = options["push_every"] if downpour else 1
        self._servers = Servers(cluster["server"])
        self._steps = 0
        self._versions: list[int] = []
        # How far the last push was behind; `None` before the first one.
        self._staleness: int | None = None
        self._gathered: Tensor | None = None
        self._tickets: list[tuple[int, int]] = []

    def enter(self) -> None:
        self._servers.enter(self._run.rank)

    def train(self, indices: np.ndarray, ticket: int) -> dict[str, float]:
        began = time.time()
        if self._steps % self._fetch_every == 0:
            self._fetch()
        fetched = time.time()
        gradient, loss, correct = self._replica.gradient(indices)
        self._gathered = gradient if self._gathered is None else self._gathered + gradient
        self._tickets.append((ticket, self._versions[0]))
        self._steps += 1
        if self._merges or self._steps % self._fetch_every:
            # What it has of its own until it next hears of the servers.
            self._replica.descend(self._run.config.optimizer["lr"])
        computed = time.time()
        if self._steps % self._push_every == 0:
            self.push()
        times = {"began": began, "fetched": fetched, "computed": computed, "pushed": time.time()}
        return {"loss": loss, "correct": correct, **times}

    def current(self) -> Tensor:
        return self._servers.fetch()[0]

    def push(self) -> None:
        if self._gathered is None:
            return
        self._staleness = self._servers.push(self._gathered, self._versions, self._tickets)
        self._gathered, self._tickets = None, []

    def _fetch(self) -> None:
        values, self._versions = self._servers.fetch()
        if self._merges and self._staleness is not None:
            self._replica.merge(values, 1 / (1 + self._staleness / self._run.config.workers))
        else:
            self._replica.load(values)


class SharingWorker(Worker):
    """On parameters in memory that it shares with the others, without a lock."""

    _shared: SharedValues

    def welcome(self, told: Message) -> None:
        self._shared = SharedValues.attach(told.figures, self._run.config)

    def train(self, indices: np.ndarray, ticket: int) -> dict[str, float]:
        began = time.time()
        before = self._shared.version()
        self._replica.load(self._shared.values)
        fetched = time.time()
        gradient, loss, correct = self._replica.gradient(indices)
        computed = time.time()
        after = self._shared.update(gradient, self._run.rank)
        times = {"began": began, "fetched": fetched, "computed": computed, "pushed": time.time()}
        return {"loss": loss, "correct": correct, "staleness": after - 1 - before, **times}

    def current(self) -> Tensor:
        return self._shared.values

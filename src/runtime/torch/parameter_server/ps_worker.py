"""Work for a coordinator: fetch parameters, compute the gradient of a part of a batch, and push it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from src.measure.step_clock import StepClock
from src.runtime.common import messages, step_profiler, update_terms
from src.runtime.common.context import RankContext
from src.runtime.common.learning_rate import LearningRate
from src.runtime.common.messages import Message
from src.runtime.common.update_terms import WorkerTerms
from src.runtime.torch import peak, setup, step_seeds
from src.runtime.torch.audit.watch import watched
from src.runtime.torch.parameter_server import pushes
from src.runtime.torch.parameter_server.replica import Replica
from src.runtime.torch.parameter_server.server import CONNECT_SECONDS, ServerGroup
from src.runtime.torch.parameter_server.shared_memory import SharedMemoryStore
from src.runtime.torch.shared_all_reduce import SHARED_MEMORY


class Worker(ABC):
    """A worker that answers the coordinator's requests, which `coordinator.py` lists."""

    def __init__(self, context: RankContext, coordinator: str) -> None:
        """Connect to the coordinator at `host:port`."""
        self._context = context
        self._replica = Replica(context)
        self._replica.warm_up()
        self._coordinator = messages.connect(coordinator, seconds=CONNECT_SECONDS)
        self._rate = LearningRate.of(context.config, context.arrays.train_samples)
        self._terms = update_terms.of_workers(update_terms.served_optimizer(context.config))
        # The coordinator records the steps; this clock is the trace's.
        self._clock = StepClock(0)
        self._profiler = None
        if context.config.profiler:
            self._profiler = step_profiler.of(context.config, context.rank, context.folder)
            self._profiler.follow(self._clock)

    def work(self, ready: Callable[[], object] = lambda: None) -> None:
        """Answer the coordinator's requests until the training is over.

        Args:
            ready: called once the coordinator and the servers know of this worker.
        """
        self.register()
        welcome = self._coordinator.ask("register", rank=self._context.rank)
        ready()
        # Buffers aren't the initial ones where the run is resumed or this worker replaces a lost one.
        self._replica.load_buffers(welcome.arrays)
        self.take_welcome(welcome)
        while (request := self._next_request()).kind != "close":
            arrays, figures = self.answer(request)
            self._coordinator.send("done", arrays, **figures)
        self._coordinator.send("done")

    def _next_request(self) -> Message:
        """Wait for the coordinator's next request."""
        with self._clock.exchanging():
            return self._coordinator.receive()

    def answer(self, request: Message) -> tuple[Sequence[np.ndarray], Mapping[str, Any]]:
        """Do what a request asks for; return the arrays and figures of the answer."""
        if request.kind == "buffers":
            return self._replica.buffers(), {}
        if request.kind == "score":
            return [self._score(request)], {}
        if request.kind == "push":
            self.push()
            return [], {}
        if request.kind == "peak":
            return [], peak.facts(self._context, setup.root_device(self._context))
        assert request.kind == "train"
        step_seeds.seed(self._context.config, self._context.rank, request.figures["step"])
        with watched(self._context, self._replica.model, request.figures["step"]):
            done = self.train(request.arrays[0], **request.figures)
        self._clock.tick()
        if self._profiler is not None:
            with self._clock.off_clock():
                self._profiler.on_steps(self._clock.steps)
        return [], done

    def train(
        self, indices: np.ndarray, *, item: int, epoch: int, step: int, divisor: float
    ) -> dict[str, Any]:
        """Train one step on the training samples `indices` [part], as work item number `item`.

        `epoch`, from 1, is the samples' epoch; `step` is the number of global batches before theirs, and
        decides the learning rate; `divisor` is what the loss of that global batch is a mean over.

        Returns the fields `loss`, `sums`, `began`, `fetched`, `computed` and `pushed` of a
        `CompletedStep`, and `staleness` if that is known.
        """
        raise NotImplementedError

    @abstractmethod
    def current_parameters(self) -> Tensor:
        """Return the training's present parameters [elements], which are to be evaluated."""

    def register(self) -> None:  # noqa: B027
        """Register this worker with the servers; called before it registers with the coordinator."""

    def take_welcome(self, welcome: Message) -> None:  # noqa: B027
        """Process the coordinator's answer to this worker's registration."""

    def push(self) -> None:  # noqa: B027
        """Push the gradients that this worker still holds back."""

    def _score(self, request: Message) -> np.ndarray:
        """Score test samples by the present parameters and the request's buffers; restore the replica."""
        parameters = self._replica.parameters()
        buffers = [buffer.copy() for buffer in self._replica.buffers()]
        self._replica.load(self.current_parameters())
        self._replica.load_buffers(request.arrays)
        scores = self._replica.score(request.figures["first"], request.figures["last"])
        self._replica.load(parameters)
        self._replica.load_buffers(tuple(buffers))
        return scores


class PSWorker(Worker):
    """A worker with parameter servers, which in some modes takes local steps between fetches."""

    def __init__(
        self,
        context: RankContext,
        addresses: Mapping[str, Sequence[str]],
        *,
        fetch_every: int,
        push_every: int,
        merges: bool,
        terms: WorkerTerms | None,
    ) -> None:
        """Connect to the coordinator and the servers.

        Args:
            context: the worker's context.
            addresses: those of all processes by job.
            fetch_every: steps between fetches, in which the worker steps on its own.
            push_every: steps whose gradients are pushed together.
            merges: whether fetched parameters are merged with the worker's own, which it steps on.
            terms: what is added to each gradient; `None` for an asynchronous worker's terms.
        """
        super().__init__(context, addresses["coordinator"][0])
        self._merges, self._fetch_every, self._push_every = merges, fetch_every, push_every
        self._servers = ServerGroup(addresses["server"], pushes.compressor(context.config))
        self._steps = 0
        self._versions: list[int] = []
        # Staleness of the last push; `None` before the first one.
        self._staleness: int | None = None
        self._gathered: Tensor | None = None
        self._items: list[tuple[int, int]] = []
        # Global batches before that of the gradient that was gathered last.
        self._step = 0
        self._terms = self._terms if terms is None else terms

    def register(self) -> None:
        """Register this worker with the servers."""
        self._servers.register(self._context.rank)

    def train(
        self, indices: np.ndarray, *, item: int, epoch: int, step: int, divisor: float
    ) -> dict[str, Any]:
        """Train one step: fetch if the mode does so in this step, compute a gradient, and push if due."""
        began = time.time()
        if self._steps % self._fetch_every == 0:
            self._fetch()
        fetched = time.time()
        gradient, loss, sums = self._replica.gradient(indices, epoch - 1, divisor, self._terms)
        self._step = step
        self._gathered = gradient if self._gathered is None else self._gathered + gradient
        self._items.append((item, self._versions[0]))
        self._steps += 1
        if self._merges or self._steps % self._fetch_every:
            # A local step, on which the worker goes on until its next fetch.
            self._replica.descend(self._rate(step))
        computed = time.time()
        if self._steps % self._push_every == 0:
            self.push()
        times = {"began": began, "fetched": fetched, "computed": computed, "pushed": time.time()}
        return {"loss": loss, "sums": sums, **times}

    def current_parameters(self) -> Tensor:
        """Return the servers' parameters [elements]."""
        return self._servers.fetch()[0]

    def push(self) -> None:
        """Push the sum of the gradients since the last push, unless there are none."""
        if self._gathered is None:
            return
        with self._clock.exchanging("push", group="servers"):
            self._staleness = self._servers.push(self._gathered, self._versions, self._items, self._step)
        self._gathered, self._items = None, []

    def _fetch(self) -> None:
        with self._clock.exchanging("fetch", group="servers"):
            values, self._versions = self._servers.fetch()
        if self._merges and self._staleness is not None:
            self._replica.merge(values, 1 / (1 + self._staleness / self._context.config.workers))
        else:
            self._replica.load(values)


class SharedMemoryWorker(Worker):
    """A worker that changes parameters in shared memory, without a lock."""

    _shared: SharedMemoryStore

    def take_welcome(self, welcome: Message) -> None:
        """Map the shared memory that the coordinator's answer names."""
        self._shared = SharedMemoryStore(welcome.figures, self._context.config)

    def train(
        self, indices: np.ndarray, *, item: int, epoch: int, step: int, divisor: float
    ) -> dict[str, Any]:
        """Train one step: copy the parameters as they happen to be, compute a gradient, and apply it."""
        began = time.time()
        before = self._shared.version()
        with self._clock.exchanging("fetch", group=SHARED_MEMORY, size=self._shared.values.nbytes):
            self._replica.load(self._shared.values)
        fetched = time.time()
        gradient, loss, sums = self._replica.gradient(indices, epoch - 1, divisor, self._terms)
        computed = time.time()
        with self._clock.exchanging("push", group=SHARED_MEMORY, size=gradient.nbytes):
            after = self._shared.update(gradient, self._context.rank, self._rate(step))
        times = {"began": began, "fetched": fetched, "computed": computed, "pushed": time.time()}
        return {"loss": loss, "sums": sums, "staleness": after - 1 - before, **times}

    def current_parameters(self) -> Tensor:
        """Return the shared parameters [elements]."""
        return self._shared.values

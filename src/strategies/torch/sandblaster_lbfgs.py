"""Sandblaster L-BFGS (Dean 2012, section 4.2): a batch method whose gradients are computed data-parallel.

A step is one iteration of L-BFGS (`src/runtime/torch/lbfgs.py`), line search included, on the mean loss of
one global batch: choose the whole training set, or a large part of it. The loss and the gradient at a point
are sums over small portions of the batch, which the coordinator hands out to whichever worker is free, as
there; so a slow worker takes fewer, and those of a lost one are done by others.
Not as there: the vectors of L-BFGS stand in the coordinator, who computes their dot products; in Sandblaster
they are sharded over parameter servers, for models that no one machine holds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from src.config import Config
from src.data import order
from src.measure.recorder import Recorder
from src.runtime.shares import apportion
from src.runtime.torch import coordination
from src.runtime.torch.lbfgs import LBFGS
from src.runtime.torch.tickets import Ticket, Tickets
from src.runtime.torch.turn_worker import Worker
from src.runtime.turns import Done
from src.runtime.wire import Connection, Message
from src.worker import Run


class Vector:
    """The parameters. A `Store`, to the coordinator."""

    def __init__(self) -> None:
        self.welcome: Mapping[str, Any] = {}
        self.values: Tensor

    def begin(self, values: Tensor, entries: Mapping[str, Tensor]) -> None:
        self.values = values.clone()

    def taken(self) -> list[tuple[int, int]]:
        return []

    def rest(self, ranks: Sequence[int]) -> None:
        pass

    def drain(self) -> None:
        pass

    def state(self) -> tuple[Tensor, dict[str, Tensor], Mapping[str, Any]]:
        return self.values.clone(), {}, {}

    def end(self) -> None:
        pass


class Iterations(Tickets):
    """An iteration of L-BFGS is handed out in portions, evaluation by evaluation."""

    def __init__(
        self, run: Run, recorders: list[Recorder], address: str, store: Vector, **named: Any
    ) -> None:
        super().__init__(run, recorders, address, store, **named)
        self._lbfgs = LBFGS(run.config.strategy["history"])
        self._vector = store
        # Where workers are to evaluate, and how often that has changed; what a worker has of it.
        self._point: Tensor | None = None
        self._version = 0
        self._sent: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()
        # There: gradient, loss x samples and correct answers.
        self._gradient = torch.zeros(0)
        self._sums = np.zeros(2)
        # Of the iteration in progress, by worker.
        self._busy: Counter[int] = Counter()
        self._samples: Counter[int] = Counter()
        # So far: iterations, and messages of all parameters, by worker.
        self._iterations = 0
        self._told: Counter[int] = Counter()
        self._answered: Counter[int] = Counter()

    def hand_out(self, batches: np.ndarray, epoch: int) -> None:
        for batch in batches:
            self._iterate(batch, epoch)

    def join(self) -> None:
        """Nothing is ever waiting between iterations."""

    def score(self) -> tuple[float, float]:
        self._move(self._vector.values)
        return super().score()

    def moved(self, rank: int) -> tuple[float, float]:
        size = self._vector.values.nbytes / max(1, self._iterations)
        return size * self._told[rank], size * self._answered[rank]

    def ask(self, connection: Connection, rank: int, ticket: Ticket) -> Message:
        # Whoever comes, or comes again, is told with the first ticket.
        if ticket.kind != "end" and self._sent.get(connection) != self._version:
            assert self._point is not None
            connection.ask("values", [self._point.numpy()])
            self._sent[connection] = self._version
            self._told[rank] += ticket.kind == "train"
        return super().ask(connection, rank, ticket)

    def _iterate(self, batch: np.ndarray, epoch: int) -> None:
        began, corrects = time.time(), []
        self._busy.clear()
        self._samples.clear()
        if len(batch) < self._run.arrays.train_samples:
            # What is known of the last batch is not of this one.
            self._point = None

        def evaluate(values: Tensor) -> tuple[float, Tensor]:
            # An iteration on the same samples begins where the one before has ended.
            if self._move(values):
                self._sum_over(batch)
            corrects.append(self._sums[1])
            return self._sums[0] / len(batch), self._gradient

        loss = self._lbfgs.step(self._vector.values, evaluate)
        pushed = time.time()
        self._iterations += 1
        workers = range(self._run.config.workers)
        samples = apportion(len(batch), [self._samples[rank] or 1e-9 for rank in workers], least=0)
        for rank in workers:
            self.arrive(
                Done(
                    rank=rank,
                    loss=float(loss),
                    correct=corrects[0] * samples[rank] / len(batch),
                    staleness=None,
                    began=began,
                    # What a worker computes in an iteration isn't one interval; this is as long as all of it.
                    fetched=pushed - self._busy[rank],
                    computed=pushed,
                    pushed=pushed,
                    # Of each evaluation a worker has done as many.
                    samples=samples[rank],
                ),
                epoch,
            )

    def _move(self, values: Tensor) -> bool:
        """Whether that is another point than the one where workers evaluated last."""
        if self._point is not None and torch.equal(self._point, values):
            return False
        self._point = values.clone()
        self._version += 1
        return True

    def _sum_over(self, batch: np.ndarray) -> None:
        self._gradient, self._sums = torch.zeros_like(self._vector.values), np.zeros(2)
        portions = order.pieces(slice(0, len(batch)), self._run.config.strategy["portion"])
        self._all([Ticket("train", (batch[part],), {"ticket": 0}) for part in portions])

    def take(self, rank: int, ticket: Ticket, answer: Message) -> None:
        if ticket.kind != "train":
            super().take(rank, ticket, answer)
            return
        self._gradient += torch.from_numpy(answer.arrays[0])
        self._sums += (answer.figures["loss"] * len(ticket.arrays[0]), answer.figures["correct"])
        self._answered[rank] += 1
        self._busy[rank] += answer.figures["seconds"]
        self._samples[rank] += len(ticket.arrays[0])


class BatchWorker(Worker):
    """Computes gradients of portions at the values that it was sent last."""

    def answer(self, asked: Message) -> tuple[Sequence[np.ndarray], dict[str, float]]:
        if asked.kind == "values":
            self._values = torch.from_numpy(asked.arrays[0])
            self._replica.load(self._values)
            return [], {}
        if asked.kind != "train":
            return super().answer(asked)
        begun = time.perf_counter()
        indices = asked.arrays[0]
        gradient, loss, correct = self._replica.gradient(indices)
        return [gradient.numpy()], {"loss": loss, "correct": correct, "seconds": time.perf_counter() - begun}

    def current(self) -> Tensor:
        return self._values


def worker(run: Run, cluster: Mapping[str, Sequence[str]]) -> Worker:
    """One worker, by the addresses of the others."""
    return BatchWorker(run, cluster["coordinator"][0])


def serve(config: Config, cores: tuple[int, ...], folder: Path) -> NoReturn:
    """A worker; whoever started it ends it."""
    coordination.serve_worker(config, cores, folder, worker)


def train(run: Run, recorder: Recorder) -> None:
    """The coordinator, who runs L-BFGS."""
    coordination.coordinate(run, recorder, Vector(), make=Iterations)

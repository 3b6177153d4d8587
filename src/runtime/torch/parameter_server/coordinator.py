"""Coordinate asynchronous torch workers: give a worker that is free a part of a batch.

A worker begins by a message `register` with its rank, to which `welcome` is the answer. After that the
coordinator sends a request, and the worker's answer to it is `done`:

    request     of the coordinator                      answer of the worker
    welcome     the store's `welcome`, buffers
    train       indices of the samples, batches before, figures of the step
                the divisor of the batch's loss
    push
    buffers                                             its buffers
    score       first and last test sample, buffers     sums over them
    peak                                                its device's peak FLOP/s
    close
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from src.data import order
from src.measure.recorder import Recorder
from src.runtime.common.async_coordinator import AsyncCoordinator, CompletedStep
from src.runtime.common.batch_split import BatchSplit, MeasuredSpeeds
from src.runtime.common.checkpoint_writer import CheckpointWriter
from src.runtime.common.context import RankContext
from src.runtime.common.listener import Listener
from src.runtime.common.messages import Connection, Head, Message
from src.runtime.torch import scoring
from src.runtime.torch.feed import divisor_of
from src.runtime.torch.parameter_server import answers
from src.runtime.torch.parameter_server.store import ParameterStore
from src.runtime.torch.parameter_server.work_item import WorkItem

# Work items for each worker, in progress or waiting.
AHEAD = 2
# Seconds between two requests to the store for the steps that have taken effect.
RESOLVE_SECONDS = 0.25


class TorchCoordinator(AsyncCoordinator):
    """A coordinator that gives work items to the torch workers which connect to it."""

    def __init__(
        self,
        context: RankContext,
        recorders: list[Recorder],
        address: str,
        store: ParameterStore,
        *,
        step_bytes: tuple[float, float],
        buffers: tuple[np.ndarray, ...],
        fixed: bool,
        write: Callable[[CheckpointWriter, tuple[np.ndarray, ...], int, int, list[int]], None],
    ) -> None:
        """Listen at `address` (`host:port`).

        Args:
            context: the coordinator's context.
            recorders: those of all workers, by rank.
            address: where workers connect.
            store: where the parameters stand.
            step_bytes: mean bytes that a step fetches, and those that it pushes.
            buffers: the model's buffers, with which workers begin.
            fixed: whether rank r trains on part r of each batch, as long as that worker isn't lost.
            write: has a checkpoint written (by whom, buffers, epochs, steps, and each worker's steps done).
        """
        super().__init__(context, recorders)
        self._step_bytes = step_bytes
        self._fixed = fixed
        self._store = store
        self._write = write
        self._changed = threading.Condition()
        self._waiting: deque[WorkItem] = deque()
        # Work items that workers have and haven't answered: how many, and how many by rank.
        self._in_progress = 0
        self._in_progress_by_rank: Counter[int] = Counter()
        # The connections of the present workers by rank, and the ranks that have been lost at least once.
        self._connections: dict[int, Connection] = {}
        self._lost: set[int] = set()
        self._buffers = buffers
        self._answers: list[Message] = []
        self._item_count = 0
        self._resolved_at = time.monotonic()
        # Steps of unknown staleness: number of the work item -> the step's other fields, and its epoch.
        self._unresolved: dict[int, tuple[dict[str, Any], int]] = {}
        # Number of the work item -> staleness, of steps that their worker hasn't reported yet.
        self._early_staleness: dict[int, int | None] = {}
        self._split = BatchSplit(context.config)
        self._speeds = MeasuredSpeeds(self._split, context.config.workers)
        self._closed = False
        self._listening = Listener(address, self._handle)

    def schedule(self, batches: np.ndarray, epoch: int) -> None:
        """Schedule a step on each rank's part of global batches of indices [steps, batch].

        This method waits while the workers have enough to do.
        """
        workers = self._context.config.workers
        for step, batch in enumerate(batches, self.scheduled):
            with self._changed:
                # The shares may change before the next batch, by a worker's answer in another thread.
                parts = [self._split.part(rank) for rank in range(workers)]
            divisor = divisor_of(self._context, self._task, batch, epoch - 1)
            for rank, part in enumerate(parts):
                self._item_count += 1
                numbers = {"item": self._item_count, "epoch": epoch, "step": step, "divisor": divisor}
                item = WorkItem("train", (batch[part],), numbers)
                with self._changed:
                    self._changed.wait_for(lambda: len(self._waiting) + self._in_progress < AHEAD * workers)
                    absent = rank in self._lost and rank not in self._connections
                    item.rank = rank if self._fixed and not absent else None
                    self._waiting.append(item)
                    self._changed.notify_all()
        if time.monotonic() - self._resolved_at > RESOLVE_SECONDS:
            self._resolve(self._store.applied())

    def step_bytes(self, rank: int) -> tuple[float, float]:
        """Return the mean bytes that a step fetches, and those that it pushes, the same for all workers."""
        return self._step_bytes

    def join(self) -> None:
        """Wait until every scheduled step is done, has taken effect and has been reported."""
        self._wait_until_idle()
        # Workers push the gradients that they still hold back.
        self._ask_all([WorkItem("push", rank=rank) for rank in sorted(self._connections)])
        self._store.drain()
        self._resolve(self._store.applied())
        # The staleness of steps whose worker was lost before its push will never be known.
        self._resolve([(item, None) for item in self._unresolved])

    def _wait_until_idle(self) -> None:
        """Wait until no work item is left; meanwhile the store is told for which workers nobody need wait."""
        resting: set[int] = set()
        while True:
            with self._changed:
                if not self._waiting and not self._in_progress:
                    return
                idle = {
                    rank
                    for rank in self._connections
                    if not self._waiting and not self._in_progress_by_rank[rank]
                }
                if idle <= resting:
                    self._changed.wait()
                    continue
            self._store.rest(sorted(idle))
            resting = idle

    def _resolve(self, applied: Iterable[tuple[int, int | None]]) -> None:
        """Report steps whose staleness is known now, from pairs of work item and staleness."""
        self._resolved_at = time.monotonic()
        for item, staleness in list(applied):
            with self._changed:
                unresolved = self._unresolved.pop(item, None)
                if unresolved is None:
                    # The servers have reported this step before its worker did.
                    self._early_staleness[item] = staleness
                    continue
            step, epoch = unresolved
            self.report(CompletedStep(**step, staleness=staleness), epoch)

    def score(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the metrics over the test set, scored by the present workers."""
        buffers = self.buffers()
        whole = slice(0, self._context.arrays.test_samples)
        pieces = order.pieces(whole, self._context.config.evaluation_batch)
        asked = [WorkItem("score", buffers, {"first": part.start, "last": part.stop}) for part in pieces]
        answers = self._ask_all(asked)
        found = scoring.scores(self._task, np.sum([each.arrays[0] for each in answers], axis=0).tolist())
        return found.loss, found.metrics

    def buffers(self) -> tuple[np.ndarray, ...]:
        """Return the buffers of one worker: of rank 0, unless that was lost once.

        The workers' buffers differ, since each worker has changed its buffers by its own samples.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._connections)
            first = min(self._connections, key=lambda rank: (rank in self._lost, rank))
        self._buffers = self._ask_all([WorkItem("buffers", rank=first)])[0].arrays
        return self._buffers

    def peak(self) -> dict[str, Any]:
        """Return the peak of a worker's device, as that worker finds it; empty where all are lost."""
        with self._changed:
            first = min(self._connections, default=None)
        answers = [] if first is None else self._ask_all([WorkItem("peak", rank=first)])
        return answers[0].figures if answers else {}

    def close(self) -> None:
        """Stop listening, and tell the workers that the training is over."""
        self._listening.close()
        with self._changed:
            # Who comes from here on is told so at once.
            self._closed = True
            present = sorted(self._connections)
        self._ask_all([WorkItem("close", rank=rank) for rank in present])

    def save(self, writer: CheckpointWriter, *, epoch: int, step: int, worker_steps: list[int]) -> None:
        """Have a checkpoint written after `epoch` whole epochs and `step` steps of the next, if finite."""
        self._write(writer, self.buffers(), epoch, step, worker_steps)

    def _ask_all(self, items: list[WorkItem]) -> list[Message]:
        """Return the workers' answers to `items`, in any order; nothing else is scheduled meanwhile."""
        with self._changed:
            self._waiting.extend(items)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._in_progress)
            answers, self._answers = self._answers, []
        return answers

    def _handle(self, connection: Connection) -> None:
        """Give work items to the worker at the other end of `connection` until the worker has gone."""
        workers = self._context.config.workers
        rank = connection.receive(lambda head: answers.examine_registration(head, workers)).figures["rank"]
        connection.send("welcome", self._buffers, **self._store.welcome)
        with self._changed:
            if self._closed:
                connection.send("close")
                return
            self._connections[rank] = connection
            self._changed.notify_all()
        item: WorkItem | None = None
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._next_item(rank) is not None)
                    item = self._next_item(rank)
                    assert item is not None
                    self._waiting.remove(item)
                    self._in_progress += 1
                    self._in_progress_by_rank[rank] += 1
                answer = self.ask(connection, rank, item)
                with self._changed:
                    self.take_answer(rank, item, answer)
                    self._in_progress -= 1
                    self._in_progress_by_rank[rank] -= 1
                    self._changed.notify_all()
                item = None
        finally:
            with self._changed:
                self._lost.add(rank)
                if self._connections.get(rank) is connection:
                    del self._connections[rank]
                if item is not None:
                    self._waiting.appendleft(item)
                    self._in_progress -= 1
                    self._in_progress_by_rank[rank] -= 1
                    # An early staleness is that of the lost worker's step; the repeated step has its own.
                    self._early_staleness.pop(item.figures.get("item", 0), None)
                self._pass_on(rank)
                self._changed.notify_all()

    def _pass_on(self, rank: int) -> None:
        """Leave a lost worker's items to the others, except those that no other worker can do."""
        for item in [item for item in self._waiting if item.rank == rank]:
            if item.kind in ("push", "peak", "close"):
                self._waiting.remove(item)
            # A request for buffers is answered by any other worker.
            item.rank = None

    def _next_item(self, rank: int) -> WorkItem | None:
        """Return the first waiting item that the worker of that rank may do."""
        return next((item for item in self._waiting if item.rank in (None, rank)), None)

    def ask(self, connection: Connection, rank: int, item: WorkItem) -> Message:
        """Give a work item to worker `rank` over `connection`; wait for the worker's answer and return it.

        Raises:
            WrongMessage: for something that is no answer to that.
        """
        connection.send(item.kind, item.arrays, **item.figures)
        return connection.receive(lambda head: self.examine(item, head))

    def examine(self, item: WorkItem, head: Head) -> None:
        """Raise `WrongMessage` for a head that announces no answer to a work item."""
        answers.examine(item.kind, head, self._buffers, len(self._task.sums))

    def take_answer(self, rank: int, item: WorkItem, answer: Message) -> None:
        """Process worker `rank`'s answer to a work item, while no other thread processes one."""
        if item.kind != "train":
            self._answers.append(answer)
            return
        step = {**answer.figures, "rank": rank, "samples": len(item.arrays[0])}
        if self._split.automatic:
            self._speeds.add(rank, step["samples"], step["computed"] - step["fetched"])
        number, epoch = item.figures["item"], item.figures["epoch"]
        if number in self._early_staleness:
            step["staleness"] = self._early_staleness.pop(number)
        if "staleness" in step:
            self.report(CompletedStep(**step), epoch)
        else:
            self._unresolved[number] = step, epoch

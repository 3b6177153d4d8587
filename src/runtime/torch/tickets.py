"""The coordinator's side of torch workers that take turns: hands each a share of a batch when it is free.

to a worker      welcome  what the store has to say, buffers    from it  here     its rank
                 train    indices of the samples                         done     a step's figures
                 push                                                    done
                 buffers                                                 done     its floating buffers
                 score    first and last test sample, buffers            done     loss, correct
                 end                                                     done
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from src.data import order
from src.measure.recorder import Recorder
from src.runtime import wire
from src.runtime.shares import Shares, Window
from src.runtime.turns import Done, Turns
from src.runtime.wire import Connection, Message
from src.worker import Run

if TYPE_CHECKING:
    from src.runtime.torch.coordination import Store

# Shares a worker that are with it or wait for it.
AHEAD = 2
# How often it is asked what has become of the steps.
RESOLVE_SECONDS = 0.25


# Not the same for having the same contents.
@dataclass(eq=False)
class Ticket:
    """Something for a worker to do: any one, or the one of that rank."""

    kind: str
    arrays: tuple[np.ndarray, ...] = ()
    figures: dict[str, int] = field(default_factory=dict)
    rank: int | None = None


class Tickets(Turns):
    """Workers connect to `address`, and are given tickets until the training ends."""

    def __init__(
        self,
        run: Run,
        recorders: list[Recorder],
        address: str,
        store: Store,
        *,
        moved: tuple[float, float],
        buffers: tuple[np.ndarray, ...],
        fixed: bool,
        write: Callable[[tuple[np.ndarray, ...], int, int, list[int]], None],
    ) -> None:
        """`moved`: bytes that a step fetches and pushes, on average. `buffers` is what workers begin with.
        `fixed`: rank r has share r of each batch, unless it is lost. `write` writes a checkpoint, given
        the buffers, whole epochs, steps of the next one, and the workers' own.
        """
        super().__init__(run, recorders)
        self._moved = moved
        self._fixed = fixed
        self._store = store
        self._write = write
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._out = 0
        # Who works, by their connections, and who has been lost at least once.
        self._present: dict[int, Connection] = {}
        self._lost: set[int] = set()
        # How many tickets are out, by rank.
        self._working: Counter[int] = Counter()
        self._buffers = buffers
        self._found: list[Message] = []
        self._count = 0
        self._resolved_at = time.monotonic()
        # Ticket -> what is known of the step, and its epoch.
        self._unresolved: dict[int, tuple[dict[str, Any], int]] = {}
        # Ticket -> staleness of a step that its worker hasn't told of yet.
        self._early: dict[int, int | None] = {}
        self._shares = Shares(run.config)
        self._windows = [Window() for _ in recorders]
        self._speeds: dict[int, float] = {}
        self._listening = wire.serve(address, self._attend)

    def hand_out(self, batches: np.ndarray, epoch: int) -> None:
        workers = self._run.config.workers
        for batch in batches:
            with self._changed:
                # They may change before the next batch. Of those who take turns all are equal.
                parts = [self._shares.of(rank) for rank in range(workers)]
            for rank, part in enumerate(parts):
                share = batch[part]
                self._count += 1
                figures = {"ticket": self._count, "epoch": epoch}
                ticket = Ticket("train", (share,), figures)
                with self._changed:
                    self._changed.wait_for(lambda: len(self._waiting) + self._out < AHEAD * workers)
                    away = rank in self._lost and rank not in self._present
                    ticket.rank = rank if self._fixed and not away else None
                    self._waiting.append(ticket)
                    self._changed.notify_all()
        if time.monotonic() - self._resolved_at > RESOLVE_SECONDS:
            self._resolve(self._store.taken())

    def moved(self, rank: int) -> tuple[float, float]:
        return self._moved

    def join(self) -> None:
        self._finish()
        # What a worker still keeps to itself.
        self._all([Ticket("push", rank=rank) for rank in sorted(self._present)])
        self._store.drain()
        self._resolve(self._store.taken())
        # Of steps that their worker has taken along nothing more will be known.
        self._resolve([(ticket, None) for ticket in self._unresolved])

    def _finish(self) -> None:
        """Returns once no ticket is left. Whoever has none meanwhile isn't waited for by the others."""
        resting: set[int] = set()
        while True:
            with self._changed:
                if not self._waiting and not self._out:
                    return
                idle = {rank for rank in self._present if not self._waiting and not self._working[rank]}
                if idle <= resting:
                    self._changed.wait()
                    continue
            self._store.rest(sorted(idle))
            resting = idle

    def _resolve(self, taken: Iterable[tuple[int, int | None]]) -> None:
        """Steps are recorded once it is known how stale their gradient was."""
        self._resolved_at = time.monotonic()
        for ticket, staleness in list(taken):
            with self._changed:
                found = self._unresolved.pop(ticket, None)
                if found is None:
                    # The servers were quicker to tell than the worker.
                    self._early[ticket] = staleness
                    continue
            step, epoch = found
            self.arrive(Done(**step, staleness=staleness), epoch)

    def score(self) -> tuple[float, float]:
        buffers = self.buffers()
        whole = slice(0, self._run.arrays.test_samples)
        pieces = order.pieces(whole, self._run.config.evaluation_batch)
        found = self._all(
            [Ticket("score", buffers, {"first": part.start, "last": part.stop}) for part in pieces]
        )
        loss, correct = np.sum([message.arrays[0] for message in found], axis=0)
        return float(loss), float(correct)

    def buffers(self) -> tuple[np.ndarray, ...]:
        """Of one worker, for each has moved them by its own samples: rank 0, unless it was lost once."""
        with self._changed:
            self._changed.wait_for(lambda: self._present)
            first = min(self._present, key=lambda rank: (rank in self._lost, rank))
        self._buffers = self._all([Ticket("buffers", rank=first)])[0].arrays
        return self._buffers

    def end(self) -> None:
        """Lets the workers go."""
        self._listening.close()
        self._all([Ticket("end", rank=rank) for rank in sorted(self._present)])

    def save(self, *, epoch: int, step: int, worker_steps: list[int]) -> None:
        self._write(self.buffers(), epoch, step, worker_steps)

    def _all(self, tickets: list[Ticket]) -> list[Message]:
        """What workers answer to tickets, in any order, while nothing else is handed out."""
        with self._changed:
            self._waiting.extend(tickets)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._out)
            found, self._found = self._found, []
        return found

    def _attend(self, connection: Connection) -> None:
        rank = connection.receive().figures["rank"]
        connection.send("welcome", self._buffers, **self._store.welcome)
        with self._changed:
            self._present[rank] = connection
            self._changed.notify_all()
        ticket: Ticket | None = None
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._next(rank) is not None)
                    ticket = self._next(rank)
                    assert ticket is not None
                    self._waiting.remove(ticket)
                    self._out += 1
                    self._working[rank] += 1
                answer = self.ask(connection, rank, ticket)
                with self._changed:
                    self.take(rank, ticket, answer)
                    self._out -= 1
                    self._working[rank] -= 1
                    self._changed.notify_all()
                ticket = None
        finally:
            with self._changed:
                self._lost.add(rank)
                if self._present.get(rank) is connection:
                    del self._present[rank]
                if ticket is not None:
                    self._waiting.appendleft(ticket)
                    self._out -= 1
                    self._working[rank] -= 1
                    # What is known of it is of the one that was lost.
                    self._early.pop(ticket.figures.get("ticket", 0), None)
                self._pass_on(rank)
                self._changed.notify_all()

    def _pass_on(self, rank: int) -> None:
        """What a lost worker was to do, others do, the first thing; but for what was its own to give."""
        for ticket in [ticket for ticket in self._waiting if ticket.rank == rank]:
            if ticket.kind in ("push", "end"):
                self._waiting.remove(ticket)
            # Whose buffers they are isn't asked again.
            ticket.rank = None

    def _next(self, rank: int) -> Ticket | None:
        return next((ticket for ticket in self._waiting if ticket.rank in (None, rank)), None)

    def ask(self, connection: Connection, rank: int, ticket: Ticket) -> Message:
        """Hands a ticket to the worker of that rank; its answer."""
        return connection.ask(ticket.kind, ticket.arrays, **ticket.figures)

    def take(self, rank: int, ticket: Ticket, answer: Message) -> None:
        """A worker's answer, while no other thread takes one."""
        if ticket.kind != "train":
            self._found.append(answer)
            return
        step = {**answer.figures, "rank": rank, "samples": len(ticket.arrays[0])}
        if self._shares.automatic:
            self._rebalance(step)
        number, epoch = ticket.figures["ticket"], ticket.figures["epoch"]
        if number in self._early:
            step["staleness"] = self._early.pop(number)
        if "staleness" in step:
            self.arrive(Done(**step), epoch)
        else:
            self._unresolved[number] = step, epoch

    def _rebalance(self, step: Mapping[str, Any]) -> None:
        speed = self._windows[step["rank"]].add(step["samples"], step["computed"] - step["fetched"])
        if speed is not None:
            self._speeds[step["rank"]] = speed
        if len(self._speeds) == len(self._windows):
            if self._shares.rebalance([self._speeds[rank] for rank in range(len(self._windows))]):
                self._windows = [Window() for _ in self._windows]
            self._speeds.clear()

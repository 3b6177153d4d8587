"""One server's part of a model's parameters, and when what workers push takes effect there.

A worker's *clock* counts the steps that it has pushed. Under a bound s a fetch at clock c waits until the
slowest worker's clock is c - s at least, and a push of clock q takes effect once that one's is q + 1 - s.
An evaluation or a checkpoint is a barrier, after which all go on from one clock:

    s = 0           at the clock's end, when all have pushed; nobody is ahead: synchronous
    0 < s           stale synchronous parallel (Ho 2013, section 3.2): a worker at clock c sees all updates up
                    to c - s - 1, its own up to c - 1, and whatever else has taken effect
    s infinite      on arrival: asynchronous

*Staleness* of a push: updates that took effect between the fetch that it was computed from and its own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Push:
    """A worker's gradient [elements], computed from what was `version` at its fetch."""

    worker: int
    version: int
    gradient: Tensor
    # The steps that it sums up, as whoever handed them out numbers them, each with the version of its fetch.
    tickets: tuple[tuple[int, int], ...] = ()
    # The worker's, as the shard counts it.
    clock: int = 0


class Shard:
    """Values [elements] that pushes change by an optimizer's rule; any thread may call any method."""

    def __init__(
        self,
        values: Tensor,
        optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
        *,
        workers: int,
        bound: float = math.inf,
        together: bool = False,
    ) -> None:
        """`together`: the pushes of one clock are one update, by their sum, and not one each."""
        self.version = 0
        self._values = values.clone()
        self._optimizer = optimizer([self._values])
        self._bound = bound
        self._together = together
        self._clocks = dict.fromkeys(range(workers), 0)
        # Who has nothing to do: nobody waits for them.
        self._resting: set[int] = set()
        self._latest = 0
        self._pending: list[Push] = []
        self._taken: list[tuple[int, int]] = []
        self._changed = threading.Condition()
        # The largest clock gap (fastest less slowest worker) at a fetch that was granted.
        self.widest_gap = 0

    def fetch(self, worker: int) -> tuple[Tensor, int]:
        """What a worker computes its next step from: a copy of the values [elements], and their version,
        the number of updates that they have had. Waits as the bound demands."""
        with self._changed:
            self._resting.discard(worker)
            self._changed.wait_for(lambda: self._slowest() >= self._clocks[worker] - self._bound)
            self.widest_gap = max(self.widest_gap, int(self._clocks[worker] - self._slowest()))
            return self._values.clone(), self.version

    def push(self, push: Push) -> int | None:
        """Takes a gradient; its staleness, or `None` if it has its effect later, as the bound says."""
        with self._changed:
            push = replace(push, clock=self._clocks[push.worker])
            self._clocks[push.worker] += 1
            self._latest = max(self._latest, push.clock + 1)
            self._pending.append(push)
            self._update(self._slowest() - 1 + self._bound)
            self._changed.notify_all()
            waits = any(other is push for other in self._pending)
            return None if waits else self.version - 1 - push.version

    def drain(self) -> None:
        """Whatever is pending takes effect, and no worker is behind: before an evaluation or a checkpoint."""
        with self._changed:
            self._update(math.inf)
            self._clocks = dict.fromkeys(self._clocks, self._latest)
            self._resting.clear()
            self._changed.notify_all()

    def rest(self, workers: Iterable[int]) -> None:
        """There is nothing left for these to do; nobody waits for them until they fetch again, or a drain."""
        with self._changed:
            self._resting |= set(workers)
            self._update(self._slowest() - 1 + self._bound)
            self._changed.notify_all()

    def leave(self, worker: int) -> None:
        """Nobody waits for this worker any more; what it has pushed stays."""
        with self._changed:
            self._clocks.pop(worker, None)
            self._update(self._slowest() - 1 + self._bound)
            self._changed.notify_all()

    def taken(self) -> list[tuple[int, int]]:
        """(ticket, staleness) of the steps whose pushes have taken effect since this was last asked."""
        with self._changed:
            found, self._taken = self._taken, []
            return found

    def slowest(self) -> int:
        """The clock of the slowest worker: where one that was lost begins again."""
        with self._changed:
            return min(self._clocks.values(), default=self._latest)

    def enter(self, worker: int, clock: int) -> None:
        """A worker begins at `clock`, for the first time or again."""
        with self._changed:
            self._clocks[worker] = clock
            self._resting.discard(worker)

    def state(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Values, and the optimizer's entries for them: tensors [elements], or counters []."""
        with self._changed:
            entries = self._optimizer.state.get(self._values, {})
            copies = {name: entry.clone() for name, entry in entries.items() if isinstance(entry, Tensor)}
            return self._values.clone(), copies

    def restore(self, values: Tensor, entries: dict[str, Tensor]) -> None:
        """Puts back what `state` gave."""
        with self._changed:
            self._values.copy_(values)
            if entries:
                self._optimizer.state[self._values] = {name: entry.clone() for name, entry in entries.items()}

    def _slowest(self) -> float:
        active = (clock for worker, clock in self._clocks.items() if worker not in self._resting)
        return min(active, default=math.inf)

    def _update(self, newest: float) -> None:
        """Pushes of clocks up to `newest` take effect, clock by clock and worker by worker."""
        ready = sorted(
            (push for push in self._pending if push.clock <= newest), key=lambda p: (p.clock, p.worker)
        )
        self._pending = [push for push in self._pending if push.clock > newest]
        groups: list[list[Push]] = []
        for push in ready:
            if self._together and groups and groups[-1][0].clock == push.clock:
                groups[-1].append(push)
            else:
                groups.append([push])
        for group in groups:
            total = group[0].gradient
            for push in group[1:]:
                total = total + push.gradient
            self._values.grad = total
            self._optimizer.step()
            for push in group:
                self._taken += [(ticket, self.version - version) for ticket, version in push.tickets]
            self.version += 1

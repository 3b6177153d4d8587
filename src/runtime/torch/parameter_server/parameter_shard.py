"""Keep one server's part of a model's parameters, and decide when the workers' pushes take effect there.

A worker's *clock* counts the steps that the worker has pushed. Under a bound s a fetch at clock c waits until
the slowest worker's clock is at least c - s, and a push of clock q takes effect once the slowest worker's
clock is q + 1 - s. The bound makes a training synchronous or asynchronous:

    s = 0           pushes of a clock take effect when all workers have pushed, and no worker is ahead:
                    synchronous
    0 < s           stale synchronous parallel (Ho 2013, section 3.2): a worker at clock c sees all updates up
                    to c - s - 1, its own up to c - 1, and any others that have taken effect
    s infinite      a push takes effect on its arrival: asynchronous

An evaluation or a checkpoint is a barrier, after which all workers go on from one clock.

The *staleness* of a push is the number of updates that took effect between the fetch from which its gradient
was computed and the push's own update.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from src.runtime.torch import update_rule


@dataclass(frozen=True)
class Push:
    """A gradient that a worker pushes.

    Attributes:
        worker: the worker's rank.
        version: version of the values from which the gradient was computed.
        gradient: [elements].
        items: the work items whose gradients it sums, each with the version of the values at its fetch.
        step: global batches before that of the gradient, on which the learning rate depends.
        clock: the worker's clock before the push, which the shard fills in.
    """

    worker: int
    version: int
    gradient: Tensor
    items: tuple[tuple[int, int], ...] = ()
    step: int = 0
    clock: int = 0


class ParameterShard:
    """A vector of parameters that pushes change by an optimizer's rule. Any thread may call any method.

    Attributes:
        version: number of updates so far.
        workers: number of workers.
        layout: type and shape [elements] of the parameters, and so of every gradient.
        widest_gap: largest clock gap between a worker that was granted a fetch and the slowest worker.
    """

    def __init__(
        self,
        values: Tensor,
        optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
        *,
        workers: int,
        bound: float = math.inf,
        sum_per_clock: bool = False,
        rate: Callable[[int], float] | None = None,
        clip_norm: float | None = None,
        total: Callable[[int, float], float] = lambda clock, squares: squares,
    ) -> None:
        """Begin at clock 0.

        Args:
            values: the initial parameters [elements].
            optimizer: makes the optimizer of a list of parameters.
            workers: number of workers.
            bound: clocks by which a worker may be ahead of the slowest one.
            sum_per_clock: whether the pushes of one clock are one update, by their sum, and not one each.
            rate: returns the learning rate after so many global batches; without it the optimizer's stays.
            clip_norm: greatest norm of an update's gradient, over all shards; `None` for no limit.
            total: returns the squared norm of an update's whole gradient, from its clock and the squared norm
                of the shard's part.
        """
        self.version = 0
        self.workers = workers
        self.layout = (str(values.dtype).removeprefix("torch."), tuple(values.shape))
        self._values = values.clone()
        self._optimizer = optimizer([self._values])
        self._bound = bound
        self._sum_per_clock = sum_per_clock
        self._rate = rate
        self._clip_norm = clip_norm
        self._total = total
        self._clocks = dict.fromkeys(range(workers), 0)
        # Workers that have nothing to do, for which no other worker waits.
        self._resting: set[int] = set()
        self._latest = 0
        self._pending: list[Push] = []
        self._applied: list[tuple[int, int]] = []
        self._changed = threading.Condition()
        self.widest_gap = 0

    def fetch(self, worker: int) -> tuple[Tensor, int]:
        """Return a copy of the values [elements], and their version, for a worker's next step.

        This method waits until the worker's clock is within the bound.
        """
        with self._changed:
            self._resting.discard(worker)
            self._changed.wait_for(lambda: self._slowest() >= self._clocks[worker] - self._bound)
            self.widest_gap = max(self.widest_gap, int(self._clocks[worker] - self._slowest()))
            return self._values.clone(), self.version

    def push(self, push: Push) -> int | None:
        """Add a worker's gradient; return its staleness, or `None` if it takes effect later, by the bound."""
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
        """Apply all pending pushes, and set all workers to the latest clock.

        The coordinator calls for this before an evaluation or a checkpoint.
        """
        with self._changed:
            self._update(math.inf)
            self._clocks = dict.fromkeys(self._clocks, self._latest)
            self._resting.clear()
            self._changed.notify_all()

    def rest(self, workers: Iterable[int]) -> None:
        """Let no worker wait for `workers`, which have nothing to do, until they fetch again or a drain."""
        with self._changed:
            self._resting |= set(workers)
            self._update(self._slowest() - 1 + self._bound)
            self._changed.notify_all()

    def leave(self, worker: int) -> None:
        """Remove a lost worker's clock, so that no worker waits for it; its pushes stay."""
        with self._changed:
            self._clocks.pop(worker, None)
            self._update(self._slowest() - 1 + self._bound)
            self._changed.notify_all()

    def applied(self) -> list[tuple[int, int]]:
        """Return (work item, staleness) of each step that took effect since the last call of this method."""
        with self._changed:
            applied, self._applied = self._applied, []
            return applied

    def slowest(self) -> int:
        """Return the clock of the slowest worker, from which a worker begins that was lost."""
        with self._changed:
            return min(self._clocks.values(), default=self._latest)

    def register(self, worker: int, clock: int) -> None:
        """Set a worker's clock to `clock`, when the worker begins for the first time or again."""
        with self._changed:
            self._clocks[worker] = clock
            self._resting.discard(worker)

    def state(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the values [elements], and the optimizer's entries by name, [elements] or counters []."""
        with self._changed:
            entries = self._optimizer.state.get(self._values, {})
            copies = {name: entry.clone() for name, entry in entries.items() if isinstance(entry, Tensor)}
            return self._values.clone(), copies

    def restore(self, values: Tensor, entries: dict[str, Tensor]) -> None:
        """Restore the values and the optimizer's entries, in the form in which `state` returns them."""
        with self._changed:
            self._values.copy_(values)
            if entries:
                self._optimizer.state[self._values] = {name: entry.clone() for name, entry in entries.items()}

    def _slowest(self) -> float:
        active = (clock for worker, clock in self._clocks.items() if worker not in self._resting)
        return min(active, default=math.inf)

    def _sum_over_shards(self, clock: int, squares: Tensor) -> Tensor:
        return torch.tensor(self._total(clock, float(squares)), dtype=squares.dtype)

    def _update(self, newest: float) -> None:
        """Apply the pending pushes of clocks up to `newest`, ordered by clock and then by worker."""
        ready = sorted(
            (push for push in self._pending if push.clock <= newest), key=lambda p: (p.clock, p.worker)
        )
        self._pending = [push for push in self._pending if push.clock > newest]
        groups: list[list[Push]] = []
        for push in ready:
            if self._sum_per_clock and groups and groups[-1][0].clock == push.clock:
                groups[-1].append(push)
            else:
                groups.append([push])
        for group in groups:
            total = group[0].gradient
            for push in group[1:]:
                total = total + push.gradient
            # What was received is read-only.
            self._values.grad = total.clone() if self._clip_norm is not None else total
            if self._clip_norm is not None:
                update_rule.clip(
                    [self._values], self._clip_norm, partial(self._sum_over_shards, group[0].clock)
                )
            if self._rate is not None:
                update_rule.set_rate(self._optimizer, self._rate(max(push.step for push in group)))
            self._optimizer.step()
            for push in group:
                self._applied += [(item, self.version - version) for item, version in push.items]
            self.version += 1

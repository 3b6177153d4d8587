"""When pushes take effect on a parameter server, under each bound; on hand-worked numbers."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

import pytest
import torch

from src.runtime.torch.parameter_server.parameter_shard import ParameterShard, Push


def descent(rate: float = 1.0, momentum: float = 0.0) -> Callable[..., torch.optim.Optimizer]:
    return lambda values: torch.optim.SGD(values, lr=rate, momentum=momentum)


def shard(workers: int = 2, bound: float = math.inf, *, sum_per_clock: bool = False) -> ParameterShard:
    return ParameterShard(
        torch.zeros(1), descent(), workers=workers, bound=bound, sum_per_clock=sum_per_clock
    )


def push(to: ParameterShard, worker: int, step: int, gradient: float, version: int = 0) -> None:
    """Its ticket is 10 times the worker's number, and the number of its step."""
    to.push(Push(worker, version, torch.tensor([gradient]), ((10 * worker + step, version),)))


def value(of: ParameterShard) -> float:
    return of.state()[0].item()


def blocked(to: ParameterShard, worker: int) -> bool:
    """Whether a fetch waits; a drain lets it go."""
    granted = threading.Event()
    thread = threading.Thread(target=lambda: (to.fetch(worker), granted.set()), daemon=True)
    thread.start()
    waits = not granted.wait(0.1)
    to.drain()
    thread.join(5)
    assert not thread.is_alive()
    return waits


def test_asynchronous_pushes_take_effect_on_arrival() -> None:
    to = shard()
    push(to, 0, 0, 1.0)
    assert value(to) == -1.0
    assert not blocked(to, 0)


def test_staleness_counts_the_updates_since_the_fetch() -> None:
    to = shard()
    _, seen = to.fetch(0)
    push(to, 1, 0, 1.0)
    push(to, 1, 1, 1.0, version=1)
    push(to, 0, 0, 1.0, version=seen)
    assert to.applied() == [(10, 0), (11, 0), (0, 2)]
    # Told once.
    assert to.applied() == []


def test_nothing_of_a_clock_is_seen_before_all_have_pushed_it_under_bound_zero() -> None:
    to = shard(bound=0)
    push(to, 0, 0, 1.0)
    assert value(to) == 0.0
    assert to.fetch(1)[0].item() == 0.0
    assert to.applied() == []
    push(to, 1, 0, 2.0)
    assert value(to) == -3.0
    # One after the other, and none of them expected.
    assert (to.version, to.applied()) == (2, [(0, 0), (10, 1)])


def test_pushes_of_one_clock_may_be_one_update() -> None:
    to = ParameterShard(torch.zeros(1), descent(momentum=0.5), workers=2, bound=0, sum_per_clock=True)
    for clock in range(2):
        push(to, 1, clock, 1.0, version=clock)
        push(to, 0, clock, 2.0, version=clock)
    # Momentum of a sum of 3: 3, then 3 + 0.5 * 3.
    assert value(to) == -7.5
    assert (to.version, to.applied()) == (2, [(0, 0), (10, 0), (1, 0), (11, 0)])


@pytest.mark.parametrize(("bound", "waits"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_fetch_waits_for_who_is_more_than_the_bound_behind(bound: float, waits: bool) -> None:
    to = shard(bound=bound)
    for clock in range(2):
        push(to, 0, clock, 1.0)
    assert blocked(to, 0) is waits


def test_a_worker_sees_its_own_pushes_and_all_that_the_bound_promises() -> None:
    to = shard(bound=2)
    push(to, 1, 0, 10.0)
    push(to, 0, 0, 1.0)
    push(to, 0, 1, 1.0)
    # Its own two, and the other's first.
    assert to.fetch(0)[0].item() == -12.0


def test_nobody_waits_for_a_lost_worker() -> None:
    to = shard(bound=0)
    push(to, 0, 0, 1.0)
    to.leave(1)
    assert value(to) == -1.0
    assert to.fetch(0)[0].item() == -1.0
    assert to.slowest() == 1
    to.register(1, 1)
    push(to, 0, 1, 1.0)
    assert value(to) == -1.0


def test_a_drain_leaves_nothing_pending_and_nobody_behind() -> None:
    to = shard(bound=0)
    push(to, 0, 0, 1.0)
    to.drain()
    assert value(to) == -1.0
    assert to.applied() == [(0, 0)]
    assert not blocked(to, 0)


def test_after_a_drain_the_bound_holds_from_where_all_are() -> None:
    to = shard(bound=1)
    push(to, 0, 0, 1.0)
    to.drain()
    # The other one had done nothing, and isn't behind for that.
    push(to, 1, 0, 1.0)
    push(to, 1, 1, 1.0)
    assert blocked(to, 1)
    push(to, 0, 1, 1.0)
    assert not blocked(to, 0)
    assert to.widest_gap == 1


def test_nobody_waits_for_who_has_nothing_to_do() -> None:
    to = shard(bound=0)
    push(to, 0, 0, 1.0)
    to.rest([1])
    assert value(to) == -1.0
    assert to.fetch(0)[0].item() == -1.0
    push(to, 0, 1, 1.0)
    # Given something again it is waited for, wherever it is.
    to.fetch(1)
    assert blocked(to, 0)


def test_a_sum_of_steps_is_as_stale_as_each_of_their_fetches() -> None:
    to = shard()
    for step in range(4):
        push(to, 1, step, 1.0)
    to.applied()
    to.push(Push(0, 3, torch.ones(1), ((0, 1), (1, 3))))
    assert to.applied() == [(0, 3), (1, 1)]


def test_the_clock_gap_reaches_the_bound_and_never_passes_it() -> None:
    """Real threads, one of which is held up at random."""
    bound, steps = 3, 60
    to = shard(workers=3, bound=bound)
    hold = random.Random(0)
    slow = [threading.Event() for _ in range(steps)]
    # As workers see it: pushes begun, which are no fewer than the shard knows of.
    begun, gaps = [0, 0, 0], []

    def work(worker: int) -> None:
        for clock in range(steps):
            if worker == 0:
                slow[clock].wait(5)
            _, version = to.fetch(worker)
            gaps.append(clock - min(begun))
            begun[worker] += 1
            push(to, worker, clock, 1.0, version)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for event in slow:
        # The straggler goes on once the others wait for it, or at once.
        if hold.random() < 0.5:
            threading.Event().wait(0.01)
        event.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert to.widest_gap == bound
    assert max(gaps) <= bound
    assert value(to) == -3.0 * steps


def test_a_restored_shard_goes_on_as_the_other_would() -> None:
    first = ParameterShard(torch.ones(3), descent(0.1, 0.9), workers=1)
    first.push(Push(0, 0, torch.ones(3)))
    second = ParameterShard(torch.zeros(3), descent(0.1, 0.9), workers=1)
    second.restore(*first.state())
    for to in (first, second):
        to.push(Push(0, 1, torch.ones(3)))
    assert torch.equal(first.state()[0], second.state()[0])

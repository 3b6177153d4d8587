"""Place the processes of a run on the hosts of a cluster."""

from __future__ import annotations

from collections.abc import Sequence


class NoRoom(Exception):
    """The error where the hosts have too few devices; its text says how many."""


def place_workers(devices: Sequence[int], workers: int, hosts: int | None, *, share: bool) -> list[int]:
    """Return the index of the host of each worker; workers of a host have neighbouring numbers.

    Args:
        devices: how many devices each host has.
        workers: how many workers there are, each of which needs a device.
        hosts: over how many hosts, the first ones, workers are spread as evenly as devices allow; `None`:
            each host is filled before the next one is used.
        share: whether workers may share devices where there are too few.

    Raises:
        NoRoom: where there are too few devices, and none may be shared.
    """
    used = list(devices if hosts is None else devices[:hosts])
    if workers > sum(used) and not share:
        raise NoRoom(f"there are {sum(used)} device(s) on {len(used)} host(s)")
    counts = [0] * len(used)
    for _ in range(workers):
        free = [index for index, count in enumerate(counts) if count < used[index]]
        if not free or hosts is not None:
            # The least loaded; the first of these.
            chosen = min(free or range(len(used)), key=lambda index: counts[index])
        else:
            chosen = free[0]
        counts[chosen] += 1
    return [index for index, count in enumerate(counts) for _ in range(count)]


def place_servers(hosts: int, workers: Sequence[int], servers: int) -> list[int]:
    """Return the index of the host of each server: in turn those without a worker, if there are any.

    Args:
        hosts: how many hosts there are.
        workers: the host of each worker.
        servers: how many servers there are.
    """
    apart = [index for index in range(hosts) if index not in workers] or list(range(hosts))
    return [apart[number % len(apart)] for number in range(servers)]

"""Measure what a backend's exchanges take between hosts, by size, and what latency and bandwidth that is.

Every process of a job measures in the same order. How often each exchange is repeated follows from the links
that were asked for, so that the processes needn't agree on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

import numpy as np

from src.config import Config
from src.config.emulated_links import link_of
from src.machine.link import rate_between, round_trip_between

# 1 KiB to 64 MiB.
SIZES = tuple(1024 * 4**power for power in range(9))
# Repetitions take about as long as this, and are so many at least and at most.
REPEAT_SECONDS, LEAST, MOST = 3.0, 3, 20
# A link that isn't limited is taken to have this rate, and an exchange to take this at least.
UNLIMITED_MBIT, OVERHEAD_SECONDS = 10_000.0, 1e-3
# Smaller exchanges say nothing of the bandwidth.
LEAST_FOR_BANDWIDTH = 256 * 1024

Row = dict[str, Any]


class Backend(Protocol):
    """One process's way to exchange with the others of its job, by one backend.

    Attributes:
        name: that of the backend.
        sends: whether one process can send to another.
        rank: this process's number among those that exchange, from 0.
        hosts: the hosts of these processes, by rank.
    """

    name: str
    sends: bool
    rank: int
    hosts: Sequence[str]

    def make(self, size: int) -> Any:
        """Make a buffer of `size` bytes."""

    def barrier(self) -> None:
        """Wait until all processes have called this method."""

    def operations(self) -> Mapping[str, tuple[Callable[[Any], None], int]]:
        """Return the exchanges in which all processes take part, by name, and how many a call makes."""

    def send(self, buffer: Any, to: int) -> None:
        """Send a buffer to another process."""

    def receive(self, buffer: Any, sender: int) -> None:
        """Receive a buffer that another process sends."""


def measure(config: Config, backend: Backend) -> list[Row]:
    """Measure all exchanges of a backend; every process calls this function, and rank 0's rows count.

    A row has the `backend`, the `operation`, the hosts `between` which it is, and for each size the median,
    least and greatest seconds, of one exchange one way.
    """
    rows: list[Row] = []
    for name, (operation, exchanges) in backend.operations().items():
        sizes = [_timed(backend, operation, size, count, exchanges) for size, count in _sizes(config)]
        rows.append(_row(backend, name, backend.hosts, sizes))
    for sender, receiver in _ring(len(backend.hosts)) if backend.sends else ():
        sizes = []
        for size, count in _sizes(config):
            backend.barrier()
            if backend.rank in (sender, receiver):
                first = backend.rank == sender
                sizes.append(_ping_pong(backend, first, sender, receiver, size, count))
        # Whoever began knows; the other process of the pair has measured the same.
        hosts = [backend.hosts[sender], backend.hosts[receiver]]
        if backend.rank in (sender, receiver):
            rows.append(_row(backend, "send_receive", hosts, sizes))
    backend.barrier()
    return rows


def _ring(processes: int) -> Iterator[tuple[int, int]]:
    """Yield each pair of neighbours once."""
    for sender in range(processes if processes > 2 else processes - 1):
        yield sender, (sender + 1) % processes


def _sizes(config: Config) -> Iterator[tuple[int, int]]:
    """Yield each size in bytes that isn't too large to be measured, with the number of its repetitions."""
    rate, trip = _slowest(config)
    for size in SIZES:
        # What is exchanged crosses the link twice.
        predicted = OVERHEAD_SECONDS + trip + 2 * size * 8e-6 / rate
        if size == SIZES[0] or predicted <= config.hardware.probe_seconds:
            count = int(REPEAT_SECONDS / predicted)
            yield size, max(LEAST if predicted < REPEAT_SECONDS else 1, min(MOST, count))


def _slowest(config: Config) -> tuple[float, float]:
    """Return the least rate in Mbit/s and the longest round trip in seconds between two hosts of a run."""
    if config.hardware.links is None:
        return UNLIMITED_MBIT, 0.0
    names = [f"worker-{number}" for number in range(config.workers)]
    names += [f"server-{number}" for number in range(config.strategy.get("servers", 0))]
    links = [link_of(config, name) for name in names]
    pairs = [(one, other) for one in links for other in links]
    rates = [rate for pair in pairs if (rate := rate_between(*pair)) is not None]
    return min(rates, default=UNLIMITED_MBIT), max(round_trip_between(*pair) for pair in pairs) / 1e3


def _timed(backend: Backend, operation: Callable[[Any], None], size: int, count: int, exchanges: int) -> Row:
    buffer = backend.make(size)
    backend.barrier()
    if count > 1:
        # Connections are made, and TCP finds out about the link.
        operation(buffer)
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        operation(buffer)
        seconds.append((time.perf_counter() - start) / exchanges)
    return _summary(size, seconds)


def _ping_pong(backend: Backend, first: bool, sender: int, receiver: int, size: int, count: int) -> Row:
    """Send a buffer to and fro; return half of what that takes."""
    buffer = backend.make(size)
    seconds = []
    for _ in range(count + (count > 1)):
        start = time.perf_counter()
        if first:
            backend.send(buffer, receiver)
            backend.receive(buffer, receiver)
        else:
            backend.receive(buffer, sender)
            backend.send(buffer, sender)
        seconds.append((time.perf_counter() - start) / 2)
    return _summary(size, seconds[count > 1 :])


def _summary(size: int, seconds: Sequence[float]) -> Row:
    return {
        "bytes": size,
        "seconds": median(seconds),
        "seconds_least": min(seconds),
        "seconds_most": max(seconds),
        "repetitions": len(seconds),
    }


def _row(backend: Backend, operation: str, hosts: Sequence[str], sizes: list[Row]) -> Row:
    latency, bandwidth = fit([(row["bytes"], row["seconds"]) for row in sizes])
    return {
        "backend": backend.name,
        "operation": operation,
        "between": list(hosts),
        "latency_seconds": latency,
        "bytes_per_second": bandwidth,
        "sizes": sizes,
    }


def fit(points: Sequence[tuple[int, float]]) -> tuple[float | None, float | None]:
    """Return the latency in seconds and the bandwidth in bytes/s of exchanges (bytes, seconds).

    The latency is what the smallest exchange takes. The bandwidth is that of the line through the larger ones
    whose relative errors have the least squares: seconds = a + bytes / bandwidth. It is `None` with fewer
    than two of them, or where more bytes take no longer.
    """
    if not points:
        return None, None
    latency = min(points)[1]
    large = [(size, seconds) for size, seconds in points if size >= LEAST_FOR_BANDWIDTH and seconds > 0]
    if len(large) < 2:
        return latency, None
    sizes, seconds = np.array(large, dtype=float).T
    terms = np.stack([1 / seconds, sizes / seconds], axis=1)
    (_, slope), *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    return latency, float(1 / slope) if slope > 0 else None

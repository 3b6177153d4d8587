"""What exchanges take, on numbers worked by hand; and who measures what."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from queue import Queue
from typing import Any

import pytest

from src.measure import exchange_benchmark
from src.measure.exchange_benchmark import SIZES, fit
from tests.support import config

pytestmark = pytest.mark.timed

MIB = 1 << 20


def test_sizes_go_from_a_kibibyte_to_64_mebibytes() -> None:
    assert (SIZES[0], SIZES[-1]) == (1024, 64 * MIB)


def test_latency_is_the_smallest_exchanges_and_bandwidth_the_slope_of_the_large_ones() -> None:
    # 10 ms and 10^6 bytes a second; what is small has 1 ms alone.
    points = [(1024, 0.001), *((size, 0.01 + size / 1e6) for size in (MIB, 4 * MIB, 16 * MIB))]
    latency, bandwidth = fit(points)
    assert latency == 0.001
    assert bandwidth == pytest.approx(1e6)


def test_a_bandwidth_takes_two_large_exchanges_of_which_the_larger_takes_longer() -> None:
    assert fit([]) == (None, None)
    assert fit([(1024, 0.5)]) == (0.5, None)
    assert fit([(1024, 0.5), (MIB, 0.7)]) == (0.5, None)
    assert fit([(1024, 0.5), (MIB, 0.7), (4 * MIB, 0.6)]) == (0.5, None)


class Instant:
    """Two processes whose exchanges take no time."""

    name, sends = "instant", False
    rank, hosts = 0, ("worker-0", "worker-1")

    def make(self, size: int) -> bytes:
        return b""

    def barrier(self) -> None:
        """Wait for nobody."""

    def operations(self) -> Mapping[str, tuple[Callable[[bytes], None], int]]:
        return {"all_reduce": (lambda _: None, 1)}

    def send(self, buffer: bytes, to: int) -> None:
        raise NotImplementedError

    def receive(self, buffer: bytes, sender: int) -> None:
        raise NotImplementedError


def repetitions(*words: str) -> dict[int, int]:
    """Return how often an exchange of each size is repeated."""
    (row,) = exchange_benchmark.measure(config(*words, "workers=2"), Instant())
    return {each["bytes"]: each["repetitions"] for each in row["sizes"]}


def test_what_takes_too_long_over_the_link_is_left_out_and_the_rest_is_repeated_as_time_allows() -> None:
    sizes = repetitions("strategy=ddp", "hardware=vpn", "hardware.probe_seconds=5")
    # 16 MiB twice over 20 Mbit/s: 13.4 s. 4 MiB: 3.4 s, once. 1 MiB: 0.88 s with 41 ms, three times.
    assert list(sizes) == list(SIZES[:-2])
    assert (sizes[1024], sizes[MIB], sizes[4 * MIB]) == (20, 3, 1)
    # The slowest link between any two hosts counts: 16 MiB twice over 100 Mbit/s in 2.684 s, the round trip
    # in 6 ms, and 1 ms besides.
    mixed = ("strategy=parameter_server", "hardware=mixed")
    assert list(repetitions(*mixed, "hardware.probe_seconds=2.690")) == list(SIZES[:-2])
    assert repetitions(*mixed, "hardware.probe_seconds=2.692")[16 * MIB] == 3
    # Without emulated links nothing takes long.
    assert repetitions("strategy=ddp") == dict.fromkeys(SIZES, 20)


class Threads:
    """Processes that are threads: they wait for each other, and sending takes its time."""

    name, sends = "threads", True

    def __init__(self, rank: int, meeting: threading.Barrier, queues: list[Queue[Any]]) -> None:
        self.rank, self.hosts = rank, [f"worker-{number}" for number in range(len(queues))]
        self._meeting, self._queues = meeting, queues

    def make(self, size: int) -> bytes:
        return bytes(size)

    def barrier(self) -> None:
        self._meeting.wait(10)

    def operations(self) -> Mapping[str, tuple[Callable[[bytes], None], int]]:
        def twice(_: bytes) -> None:
            time.sleep(0.02)
            self.barrier()

        return {"all_reduce": (twice, 2)}

    def send(self, buffer: bytes, to: int) -> None:
        time.sleep(0.004)
        self._queues[to].put(buffer)

    def receive(self, buffer: bytes, sender: int) -> None:
        assert len(self._queues[self.rank].get(timeout=10)) == len(buffer)


@pytest.mark.parametrize("processes", [2, 3])
def test_each_pair_of_neighbours_is_measured_once_and_one_way(processes: int) -> None:
    # 4 KiB twice over 0.04 Mbit/s in 1.68 s, three times in what repetitions may take; 16 KiB in 6.6 s.
    links = [f"hardware.links.worker.{way}.rate_mbit=0.04" for way in ("up", "down")]
    words = ("strategy=ddp", "hardware=vpn", *links, "hardware.probe_seconds=5")
    chosen = config(*words, f"workers={processes}", f"batch={processes}")
    meeting, queues = threading.Barrier(processes), [Queue() for _ in range(processes)]
    rows: dict[int, list[exchange_benchmark.Row]] = {}

    def run(rank: int) -> None:
        rows[rank] = exchange_benchmark.measure(chosen, Threads(rank, meeting, queues))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    every = {(row["operation"], *row["between"]) for own in rows.values() for row in own}
    names = [f"worker-{number}" for number in range(processes)]
    pairs = [(names[0], names[1])] if processes == 2 else [*zip(names, names[1:] + names[:1], strict=True)]
    assert every == {("all_reduce", *names), *(("send_receive", *pair) for pair in pairs)}
    for row in rows[0]:
        assert [each["bytes"] for each in row["sizes"]] == [1024, 4096]
        assert [each["repetitions"] for each in row["sizes"]] == [6, 3]
        if row["operation"] == "send_receive":
            # Half of there and back.
            assert all(0.004 <= each["seconds"] < 0.05 for each in row["sizes"])
        else:
            # A call was two of them.
            assert all(0.01 <= each["seconds"] < 0.05 for each in row["sizes"])

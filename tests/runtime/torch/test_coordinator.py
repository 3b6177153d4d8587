"""The coordinator's work items, with workers that are threads here and compute nothing."""

from __future__ import annotations

import math
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from src.launch.local.hosts import LocalHosts
from src.run import variables
from src.runtime.common import messages
from src.runtime.common.context import RankContext
from src.runtime.common.messages import Connection, Message
from src.runtime.torch.parameter_server.coordinator import TorchCoordinator
from src.runtime.torch.parameter_server.parameter_shard import ParameterShard, Push
from tests.support import config

TIMES = {"loss": 1.0, "sums": [0], "began": 0.0, "fetched": 0.0, "computed": 0.0, "pushed": 0.0}
BATCHES = np.arange(8).reshape(2, 4)


class Job:
    """Two workers, a shard, and the coordinator of both."""

    def __init__(self, bound: float, *, fixed: bool = False) -> None:
        arrays = SimpleNamespace(train_samples=8, test_samples=1, classes=10, shape=(28, 28, 1))
        context = RankContext(
            config("strategy=parameter_server", "strategy.mode=ssp", "workers=2", "batch=4"),
            0,
            2,
            arrays,
            Path(),
            (0,),
        )
        self.shard = ParameterShard(
            torch.zeros(1), lambda values: torch.optim.SGD(values, lr=1.0), workers=2, bound=bound
        )
        self.address = LocalHosts().free_address("")
        store: Any = self.shard
        store.welcome = {}
        self.buffers = (np.ones(3),)
        self.coordinator = TorchCoordinator(
            context,
            [],
            self.address,
            store,
            step_bytes=(0, 0),
            buffers=self.buffers,
            fixed=fixed,
            write=lambda *_: None,
        )
        self.trained: list[int] = []

    def come(self, rank: int) -> tuple[Connection, Message]:
        """A worker, and what it receives first."""
        connection = messages.connect(self.address, seconds=5)
        return connection, connection.ask("register", rank=rank)

    def work(self, rank: int) -> threading.Event:
        """A worker that does what it is told; set once the shard makes it wait."""
        connection, _ = self.come(rank)
        waits = threading.Event()

        def work() -> None:
            while (request := connection.receive()).kind != "close":
                if request.kind == "train":
                    timer = threading.Timer(0.2, waits.set)
                    timer.start()
                    _, version = self.shard.fetch(rank)
                    timer.cancel()
                    number = request.figures["item"]
                    self.shard.push(Push(rank, version, torch.ones(1), ((number, version),)))
                    self.trained.append(number)
                    connection.send("done", **TIMES)
                else:
                    connection.send("done", self.buffers if request.kind == "buffers" else ())
            connection.send("done")

        threading.Thread(target=work, daemon=True).start()
        return waits

    def join(self) -> bool:
        """Whether all is done soon."""
        joining = threading.Thread(target=self.coordinator.join, daemon=True)
        joining.start()
        joining.join(5)
        return not joining.is_alive()


def test_who_comes_when_all_shares_are_out_holds_nobody_up() -> None:
    job = Job(bound=2)
    waits = job.work(0)
    job.coordinator.schedule(BATCHES, 1)
    # It has done three, and has the fourth.
    assert waits.wait(5)
    assert job.trained == [1, 2, 3]
    job.work(1)
    assert job.join()
    assert job.trained == [1, 2, 3, 4]
    assert job.shard.applied() == []


@pytest.mark.parametrize("bound", [0, 1, math.inf])
def test_what_a_lost_worker_had_is_done_by_another(bound: float) -> None:
    job = Job(bound)
    lost, _ = job.come(1)
    job.coordinator.schedule(BATCHES, 1)
    assert lost.receive().kind == "train"
    lost.close()
    job.shard.leave(1)
    job.work(0)
    assert job.join()
    assert sorted(job.trained) == [1, 2, 3, 4]


def test_a_fixed_share_is_nobody_elses_unless_its_worker_is_lost() -> None:
    job = Job(0, fixed=True)
    late, _ = job.come(1)
    waits = job.work(0)
    job.coordinator.schedule(BATCHES, 1)
    # The second share of the first batch is the other one's, who isn't done with it.
    assert waits.wait(5)
    assert job.trained == [1]
    assert late.receive().figures["item"] == 2
    late.close()
    job.shard.leave(1)
    job.coordinator.schedule(BATCHES, 2)
    assert job.join()
    assert sorted(job.trained) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_what_only_a_lost_worker_could_give_is_not_waited_for() -> None:
    job = Job(math.inf)
    lost, _ = job.come(1)
    job.work(0)
    # It is asked to push what it keeps to itself.
    joining = threading.Thread(target=job.coordinator.join, daemon=True)
    joining.start()
    assert lost.receive().kind == "push"
    lost.close()
    joining.join(5)
    assert not joining.is_alive()


def test_who_comes_back_has_the_buffers_that_were_known_last() -> None:
    job = Job(math.inf)
    assert job.come(1)[1].arrays[0].tolist() == [1, 1, 1]
    first, _ = job.come(0)
    asking = threading.Thread(target=job.coordinator.buffers, daemon=True)
    asking.start()
    assert first.receive().kind == "buffers"
    first.send("done", [np.full(3, 7.0)])
    asking.join(5)
    first.close()
    assert job.come(0)[1].arrays[0].tolist() == [7, 7, 7]


def test_a_workers_device_is_asked_for_its_peak_and_a_lost_one_is_not_waited_for() -> None:
    job = Job(math.inf)
    assert job.coordinator.peak() == {}
    first, _ = job.come(1)
    # A worker has its answer before the coordinator counts on it, as who is asked for buffers does.
    asking = threading.Thread(target=job.coordinator.buffers, daemon=True)
    asking.start()
    assert first.receive().kind == "buffers"
    first.send("done", job.buffers)
    asking.join(5)
    found: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: found.append(job.coordinator.peak()), daemon=True)
    asking.start()
    assert first.receive().kind == "peak"
    first.send("done", peak_flops=5e14, peak_device="NVIDIA H100 PCIe")
    asking.join(5)
    assert found == [{"peak_flops": 5e14, "peak_device": "NVIDIA H100 PCIe"}]
    asking = threading.Thread(target=lambda: found.append(job.coordinator.peak()), daemon=True)
    asking.start()
    assert first.receive().kind == "peak"
    first.close()
    asking.join(5)
    assert found[1:] == [{}]


def test_who_registers_after_the_end_is_told_so() -> None:
    job = Job(math.inf)
    host, port = job.address.rsplit(":", 1)
    connected = socket.create_connection((host, int(port)), timeout=5)
    connected.sendall(variables.token().encode())
    late = Connection(connected)
    # It is accepted before the others are told, and says who it is afterwards.
    job.come(0)[0].close()
    job.coordinator.close()
    assert late.ask("register", rank=1).kind == "welcome"
    assert late.receive().kind == "close"
    with pytest.raises(ConnectionError):
        messages.connect(job.address, seconds=0.1)


@pytest.mark.parametrize(
    "answer",
    [{}, {**TIMES, "loss": "1"}, {**TIMES, "rank": 1}, {**TIMES, "staleness": [1]}],
    ids=["nothing", "text", "another's", "list"],
)
def test_a_wrong_answer_ends_its_connection_and_another_worker_does_the_step(answer: dict[str, Any]) -> None:
    job = Job(math.inf)
    forger, _ = job.come(1)
    job.coordinator.schedule(BATCHES, 1)
    assert forger.receive().kind == "train"
    forger.send("done", **answer)
    with pytest.raises(ConnectionError):
        forger.receive()
    job.shard.leave(1)
    job.work(0)
    assert job.join()
    assert sorted(job.trained) == [1, 2, 3, 4]


def test_a_stranger_at_the_door_is_nobodys_worker() -> None:
    job = Job(math.inf)
    for rank in (2, -1, "0", None, True):
        forger = messages.connect(job.address, seconds=5)
        forger.send("register", rank=rank)
        with pytest.raises(ConnectionError):
            forger.receive()
    assert job.coordinator.peak() == {}, "nobody is asked"

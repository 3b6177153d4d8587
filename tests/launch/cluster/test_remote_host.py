"""Tests of how the parent follows a host, with an agent that is told what to answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from src.launch.cluster.engine import HostLost
from src.launch.cluster.facts import HostFacts
from src.launch.cluster.remote_host import RemoteHost
from src.launch.cluster.run_folder import Piece
from src.run import files
from src.run.variables import PROCESS, RANK, SERVES, STARTED

CHECKPOINT = files.CHECKPOINTS["torch"]
STEPS = "ranks/1/steps.csv"


@dataclass
class ScriptedAgent:
    """A connection to an agent that has nothing to tell but `pieces`, until it is lost."""

    pieces: list[Piece] = field(default_factory=list)
    lost: bool = False
    ended: list[tuple[str, int]] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    def call(self, method: str, *arguments: Any, seconds: float) -> Any:
        if self.lost:
            raise HostLost("for the test")
        if method == "ended":
            # The host asks again, and soon sees what the test has changed.
            self.closed.wait(min(0.05, arguments[0]))
            return self.ended
        if method == "changes":
            told, self.pieces = self.pieces, []
            return told
        return {"begin": "/there", "spawn": 7, "clocks": (0.0, 0.0)}.get(method)

    def close(self) -> None:
        self.closed.set()


Pair = tuple[ScriptedAgent, RemoteHost, ScriptedAgent, RemoteHost]


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    # The test itself says when files are fetched.
    monkeypatch.setattr("src.launch.cluster.remote_host.FETCH_SECONDS", 3600)
    agents = ScriptedAgent(), ScriptedAgent()
    hosts = []
    for number, agent in enumerate(agents):
        address = f"127.0.0.{number + 1}"
        facts = HostFacts(f"host{number}", address, "lo", "/python", "/env", "", {}, 0, (), "", (), 0)
        hosts.append(RemoteHost(agent, facts, 5.0))
    for host in hosts:
        host.peers = hosts
        host.begin_job(tmp_path)
    yield agents[0], hosts[0], agents[1], hosts[1]
    for host in hosts:
        host.close()


def spawn(host: RemoteHost, rank: int, **more: str) -> None:
    environment = {PROCESS: f"rank-{rank}", RANK: str(rank), STARTED: "0", **more}
    host.spawn(["true"], environment, Path("/there/log"))


def test_a_first_checkpoint_waits_for_the_first_records_of_another_host(pair: Pair, tmp_path: Path) -> None:
    own, host, other, second = pair
    spawn(host, 0)
    spawn(second, 1)
    own.pieces = [Piece(CHECKPOINT, 0, b"state")]
    other.pieces = [Piece(STEPS, 0, b"epoch,step\n1,1\n")]
    host.fetch()
    assert (tmp_path / CHECKPOINT).read_bytes() == b"state"
    assert (tmp_path / STEPS).read_text().endswith("1,1\n")


def test_a_checkpoint_is_none_without_the_records_of_a_lost_host(pair: Pair, tmp_path: Path) -> None:
    own, host, other, second = pair
    spawn(host, 0)
    spawn(second, 1)
    own.pieces = [Piece(CHECKPOINT, 0, b"state")]
    other.lost = True
    with pytest.raises(HostLost):
        host.fetch()
    assert not list(tmp_path.glob(f"*{CHECKPOINT}*"))


def test_a_coordinator_s_checkpoint_does_not_wait_for_a_worker_s_host(pair: Pair, tmp_path: Path) -> None:
    own, host, other, second = pair
    spawn(host, 0)
    spawn(second, 1, **{SERVES: "1"})
    own.pieces = [Piece(CHECKPOINT, 0, b"state")]
    other.lost = True
    host.fetch()
    assert (tmp_path / CHECKPOINT).exists()


def test_a_process_is_started_where_another_host_was_lost_before(pair: Pair) -> None:
    _, host, other, _ = pair
    other.lost = True
    spawn(host, 0)


def test_a_host_is_lost_whose_files_cannot_be_fetched(
    pair: Pair, until: Callable[[Callable[[], object], float, str], float]
) -> None:
    own, host, _, _ = pair
    spawn(host, 0)
    # What an agent of another version might tell.
    own.pieces = [None]  # type: ignore[list-item]
    own.ended = [("rank-0", 0)]
    until(lambda: host.lost, 10, "it is lost")
    assert "its files can't be fetched: AttributeError" in (host.lost or "")
    assert host.answered(0.0)

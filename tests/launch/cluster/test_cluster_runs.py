"""Runs by agents: the right one is named when something dies, and nothing is left; mistakes are sentences."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from src.config import CannotRunHere, ConfigError
from src.launch.cluster import cluster, cluster_hosts
from src.launch.cluster.cluster import Cluster
from src.launch.cluster.cluster_hosts import ClusterHosts, placed_workers
from src.launch.cluster.engine import HostLost
from src.launch.cluster.remote_host import RemoteHost
from src.launch.host import worker_host
from tests.launch.cluster.local_engine import CACHES, HOSTS
from tests.support import config, instances

ROOT = Path(__file__).parents[3]
PLUGIN = ("--config-dir", f"{ROOT}/tests/plugin/conf", "strategy=mpi_steps", "model=mlp")
ON_HOSTS = ("hardware=two_hosts", "hardware.device=cpu", "hardware.sample_seconds=0.05")
WORDS = (*PLUGIN, *ON_HOSTS, "workers=2", "tracking.backend=none", "out=run")
Until = Callable[[Callable[[], object], float, str], float]


def agents(parent: int) -> list[psutil.Process]:
    """The agents of a command, by their addresses."""
    found = [each for each in psutil.Process(parent).children() if "agent_server" in " ".join(each.cmdline())]
    return sorted(found, key=lambda each: each.cmdline()[-2])


class Running:
    """A run that goes on, with what belongs to it."""

    def __init__(self, commands, until: Until, *words: str) -> None:
        self._commands, self._until = commands, until
        self.command = commands.start(*WORDS, "strategy.max_restarts=0", *words)
        steps = commands.folder / "run" / "ranks" / "1" / "steps.csv"
        until(lambda: steps.exists() and steps.read_text().count("\n") > 20, 60, "the first steps")
        self.agents = agents(self.command.pid)
        self.family = psutil.Process(self.command.pid).children(recursive=True)
        self.ranks = [self._rank(number) for number in (0, 1)]

    def _rank(self, number: int) -> psutil.Process:
        return next(each for each in self.family if each.name() == f"rank-{number}")

    def ended(self, within: float) -> str:
        """What it has said, once all is gone."""
        took = self._until(lambda: self.command.poll() is not None, within + 20, "the command's end")
        assert took < within
        self.gone()
        return self._commands.output()[1]

    def gone(self, within: float = 10.0) -> None:
        self._until(lambda: not any(each.is_running() for each in self.family), within, "nothing left")


def test_a_run_by_agents_has_records_of_both_hosts_and_ships_data_once(
    commands, mnist: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHES, str(tmp_path / "caches"))
    ended = commands.run(*WORDS, "strategy.behaviour=end")
    assert ended.returncode == 0, ended.stderr
    run = commands.folder / "run"
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["status"], metrics["epochs"]) == ("ok", 1)
    rows = [row.split(",") for row in (run / "steps.csv").read_text().splitlines()[1:]]
    assert [(row[0], float(row[5])) for row in rows] == [("0", 1.0)] * 60 + [("1", 1.0)] * 60
    hosts = json.loads((run / "environment.json").read_text())["hosts"]
    assert [host["address"] for host in hosts] == ["127.0.0.1", "127.0.0.2"]
    assert [host["processes"][-1] for host in hosts] == ["rank-0", "rank-1"]
    trace = [row.split(",") for row in (run / "trace.csv").read_text().splitlines()[1:]]
    assert {row[1] for row in trace} == {"0", "1"}
    assert {path.name for path in (run / "logs").iterdir()} == {
        "rank-0.log",
        "rank-1.log",
        "mpiexec.log",
        "mpi-proxy-0.log",
        "mpi-proxy-1.log",
    }
    shipped = {path: path.stat().st_mtime_ns for path in (tmp_path / "caches").rglob("*.npy")}
    assert shipped
    assert commands.run(*WORDS, "strategy.behaviour=end", "overwrite=true").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "caches").rglob("*.npy")} == shipped
    assert commands.left() == []


@pytest.mark.slow
def test_a_killed_rank_is_named(commands, mnist: None, until: Until) -> None:
    run = Running(commands, until)
    run.ranks[1].kill()
    said = run.ended(within=10)
    assert run.command.returncode == 1
    assert "error: rank 1 was killed by SIGKILL; its log is run/logs/rank-1.log" in said


def test_a_killed_agent_is_named_with_its_host(commands, mnist: None, until: Until) -> None:
    run = Running(commands, until)
    run.agents[1].kill()
    said = run.ended(within=10)
    assert run.command.returncode == 1
    assert "error: host 127.0.0.2 was lost with rank 1: its agent has ended" in said


@pytest.mark.slow
def test_a_silent_host_is_lost_in_time_and_its_ranks_go(commands, mnist: None, until: Until) -> None:
    run = Running(commands, until)
    run.agents[1].suspend()
    # Ranks of this strategy meet at every step: without the lease, that one would wait for ever.
    took = until(lambda: run.command.poll() is not None, 40, "the command's end")
    assert took < 3 + 10
    assert "host 127.0.0.2 was lost with rank 1: it didn't answer for" in commands.output()[1]
    # The parent kills it, if that can be.
    with contextlib.suppress(psutil.NoSuchProcess):
        run.agents[1].resume()
    run.gone()


@pytest.mark.slow
@pytest.mark.parametrize("number", instances([signal.SIGKILL, signal.SIGINT], signal.SIGKILL))
def test_nothing_is_left_of_a_parent_that_ends(
    commands, mnist: None, until: Until, number: signal.Signals
) -> None:
    run = Running(commands, until)
    os.kill(run.command.pid, number)
    run.command.wait(20)
    # The lease is of three seconds.
    run.gone(within=3 + 10)
    if number == signal.SIGINT:
        assert run.command.returncode == 130
        assert (commands.folder / "run" / "metrics.json").exists()


def test_too_few_hosts_are_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "HOSTS_SECONDS", 0.1)
    with pytest.raises(CannotRunHere, match=r"hosts=3: the cluster has 2 host\(s\).*127.0.0.1, 127.0.0.2"):
        Cluster(config(*PLUGIN, *ON_HOSTS, "hardware.hosts=3"))


@pytest.fixture
def two() -> Cluster:
    made = Cluster(config(*PLUGIN, *ON_HOSTS))
    yield made
    made.close()


def engine_folder(cluster: Cluster) -> Path:
    """Return the folder of a cluster's engine, in which the agents that it has started are listening."""
    commands = [psutil.Process(host.facts.process).cmdline() for host in cluster.hosts]
    (folder,) = {Path(command[3]).parent for command in commands}
    return folder


def test_clusters_of_one_command_are_on_one_engine_until_the_last_is_closed(two: Cluster) -> None:
    of_one = Cluster(config(*PLUGIN, *ON_HOSTS, "hardware.hosts=1"))
    assert [host.address for host in of_one.hosts] == ["127.0.0.1"]
    folder = engine_folder(two)
    assert engine_folder(of_one) == folder
    of_one.close()
    of_one.close()
    assert two.hosts[1].call("room") > 0
    two.close()
    assert not folder.exists()


def test_a_run_begins_on_an_agent_anew_and_on_no_fewer_hosts_than_it_asks_for(
    two: Cluster, mnist: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen = config(*PLUGIN, *ON_HOSTS, "hardware.hosts=2", "workers=2")
    (tmp_path / "config.yaml").write_text("resume: null\nmodel: {pretrained: null}\n")
    monkeypatch.setattr(cluster_hosts, "cluster_of", lambda config: two)
    for host in two.hosts:
        # An earlier run of the same sweep has lost it.
        psutil.Process(host.facts.process).kill()
    lost = list(two.hosts)
    with pytest.raises(HostLost):
        for host in lost:
            host.call("room")
    lost[1].lost = lost[1].lost or "for the test"
    begun = ClusterHosts(chosen, tmp_path, None)
    assert {host.address for host in two.alive()} == {host.address for host in lost}
    assert begun.host(worker_host(1)) is two.hosts[1] is not lost[1]
    for host in two.hosts:
        host.end_job()
    two.hosts[1].lost = "for the test"
    monkeypatch.setenv(HOSTS, "0")
    with pytest.raises(CannotRunHere, match=r"hosts=2: 1 host\(s\) of the cluster are left"):
        ClusterHosts(chosen, tmp_path, None)


class Answers:
    """An agent that does nothing but give these answers."""

    def __init__(self, **answers: object) -> None:
        self._answers, self._closed = answers, threading.Event()

    def call(self, method: str, *arguments: object, seconds: float) -> object:
        if method == "ended":
            self._closed.wait(seconds)
        elif method == "close":
            self._closed.set()
        return self._answers.get(method, [])

    def close(self) -> None:
        self._closed.set()


@contextlib.contextmanager
def described(cluster: Cluster, **changes: object) -> Iterator[None]:
    """Have the second host of a cluster describe itself otherwise within the block."""
    other = cluster.hosts[1]
    facts = dataclasses.replace(other.facts, **changes)
    cluster.hosts[1] = RemoteHost(Answers(describe=facts), facts, 5.0)
    try:
        yield
    finally:
        cluster.hosts[1].close()
        cluster.hosts[1] = other


def test_what_would_compute_otherwise_is_refused(two: Cluster) -> None:
    chosen = config(*PLUGIN, *ON_HOSTS)
    two.check(chosen)
    with described(two):
        two.check(chosen)
    for changes, says in (
        ({"code": "another"}, r"host 127\.0\.0\.2 .* has other code of this project"),
        ({"versions": {"numpy": "0.1"}}, r"has numpy 0\.1, and not numpy \d.*constraints.txt"),
        ({"versions": {"numpy": None}}, r"host 127.0.0.2 \(.*\) lacks numpy \d"),
        ({"niceness": os.nice(0) + 5}, rf"start its ranks with niceness {os.nice(0) + 5}, and this one with"),
    ):
        with described(two, **changes), pytest.raises(ConfigError, match=says):
            two.check(chosen)


def test_another_time_is_refused(two: Cluster) -> None:
    two.hosts[0].offset = cluster.clocks.Offset(wall=-3.25)
    with pytest.raises(ConfigError, match=r"clock that is -3\.2 s off"):
        two.check(config(*PLUGIN, *ON_HOSTS))


def test_more_workers_than_devices_are_refused(two: Cluster) -> None:
    chosen = config(*PLUGIN, *ON_HOSTS, "hardware.share_devices=false", "workers=64", "batch=64")
    with pytest.raises(CannotRunHere, match=r"workers=64: there are \d+ device\(s\) on 2 host\(s\)"):
        placed_workers(chosen, two.hosts)


def test_data_without_room_are_refused(mnist: None, two: Cluster) -> None:
    host = RemoteHost(Answers(room=1000, has_data=False), two.hosts[1].facts, 5.0)
    with (
        contextlib.closing(host),
        pytest.raises(CannotRunHere, match=r"dataset=mnist: host 127.0.0.2 has 1,000 bytes free for its \d"),
    ):
        two.ship(config(*PLUGIN), [host])


def test_a_host_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOSTS, "1")
    monkeypatch.setattr(cluster, "START_SECONDS", 0.01)
    with pytest.raises(CannotRunHere, match=r"host 127\.0\.0\.1 doesn't answer"):
        Cluster(config(*PLUGIN, *ON_HOSTS, "hardware.hosts=1"))

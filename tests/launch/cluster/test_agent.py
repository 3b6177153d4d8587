"""An agent starts, signals and ends processes for a parent, and ends with it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from src.launch.cluster.engine import HostLost, Node
from src.run import files
from tests.launch.cluster.local_engine import AgentConnection, LocalEngine
from tests.support import environment_of

LONG = [sys.executable, "-c", "import time; time.sleep(600)"]
# As a rank does.
FOLLOWING = (
    "import ctypes, os, signal, time; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
    "os.getppid() == int(os.environ['SCALEGUIDE_PARENT']) and time.sleep(600)"
)
Start = Callable[..., AgentConnection]
Until = Callable[[Callable[[], object], float, str], float]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an agent whose parent may be silent for so many seconds."""
    engine = LocalEngine()
    begun: list[AgentConnection] = []

    def begin(lost_seconds: float = 60.0) -> AgentConnection:
        begun.append(engine.start_agent(Node("1", "127.0.0.1", True), lost_seconds))
        call(begun[-1], "begin", "run")
        return begun[-1]

    yield begin
    for each in begun:
        each.close()
    engine.close()


def call(agent: AgentConnection, method: str, *arguments: Any) -> Any:
    return agent.call(method, *arguments, seconds=20.0)


def spawn(agent: AgentConnection, name: str, command: list[str], **environment: str) -> psutil.Process:
    log = str(Path(call(agent, "begin", "run"), files.LOGS, f"{name}.log"))
    return psutil.Process(call(agent, "spawn", name, command, {"RANK": "0", **environment}, log))


def test_the_end_of_a_process_is_told_and_its_output_fetched(start: Start) -> None:
    agent = start()
    spawn(agent, "rank-3", [sys.executable, "-c", "print('there'); raise SystemExit(7)"])
    assert call(agent, "ended", 20.0) == [("rank-3", 7)]
    (log,) = [piece for piece in call(agent, "changes") if piece.name == "logs/rank-3.log"]
    assert log.data == b"there\n"


def test_a_process_has_the_host_s_environment_without_the_engine_s(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "5")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OF_THE_HOST", "yes")
    agent = start()
    code = "import os; print(sorted({'RAY_JOB_ID', 'OMP_NUM_THREADS', 'OF_THE_HOST', 'OWN'} & {*os.environ}))"
    spawn(agent, "rank-0", [sys.executable, "-c", code], OWN="too")
    call(agent, "ended", 20.0)
    assert [piece.data for piece in call(agent, "changes")] == [b"['OF_THE_HOST', 'OWN']\n"]


def test_a_process_is_killed_by_name_with_its_children(start: Start) -> None:
    agent = start()
    process = spawn(agent, "rank-0", LONG)
    call(agent, "signal", "rank-0", int(signal.SIGKILL))
    assert call(agent, "ended", 20.0) == [("rank-0", -signal.SIGKILL)]
    assert not process.is_running()
    # The job is over: nobody is meant any more.
    call(agent, "end_job")
    call(agent, "signal", "rank-0", int(signal.SIGKILL))


def test_an_agent_that_hears_nothing_ends_its_processes_and_itself(start: Start, until: Until) -> None:
    agent = start(lost_seconds=1.0)
    process = spawn(agent, "rank-0", LONG)
    assert environment_of(process)["SCALEGUIDE_PARENT"] == str(agent.process.pid)
    # Calls keep it alive for longer than that.
    for _ in range(4):
        assert call(agent, "ended", 0.4) == []
    assert process.is_running()
    assert until(lambda: agent.process.poll() is not None, 10, "the agent's end") < 5
    until(lambda: not process.is_running(), 5, "the rank's end")
    with pytest.raises(HostLost):
        call(agent, "clocks")


def test_the_ranks_and_files_of_a_killed_agent_go_with_it(start: Start, until: Until) -> None:
    agent = start()
    process = spawn(agent, "rank-0", [sys.executable, "-c", FOLLOWING])
    log = Path(os.readlink(f"/proc/{process.pid}/fd/1"))
    agent.process.kill()
    until(lambda: not process.is_running(), 5, "the rank's end")
    until(lambda: not log.parents[2].exists(), 10, "the removal of the agent's folder")


def test_a_rank_elsewhere_is_stood_in_for_until_it_ends(start: Start, until: Until) -> None:
    agent = start()
    path = Path(call(agent, "begin", "run"), files.RANKS, "1", files.ALIVE)
    call(agent, "stand_in", 1)
    waiting = (
        "import fcntl, sys; file = open(sys.argv[1]); print('waits', flush=True); "
        "fcntl.flock(file, fcntl.LOCK_SH)"
    )
    log = str(path.parents[2] / files.LOGS / "rank-0.log")
    call(agent, "spawn", "rank-0", [sys.executable, "-c", waiting, str(path)], {"RANK": "0"}, log)
    until(lambda: Path(log).exists() and Path(log).read_text() == "waits\n", 20, "the rank's start")
    assert call(agent, "ended", 0.2) == []
    call(agent, "let_go", 1)
    assert call(agent, "ended", 20.0) == [("rank-0", 0)]


def test_a_closed_agent_leaves_nothing(start: Start) -> None:
    agent = start()
    process = spawn(agent, "rank-0", LONG)
    folder = Path(os.readlink(f"/proc/{process.pid}/fd/1")).parents[2]
    call(agent, "close")
    assert not folder.exists()
    assert agent.process.wait(10) == 0

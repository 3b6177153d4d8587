"""Ranks that mpiexec starts are the parent's as others are: their place, their exit status, their end."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.config import ConfigError
from src.launch.launched import LaunchedProcess
from src.launch.local.hosts import LocalHosts
from src.launch.mpi import agent
from src.launch.mpi_ranks import MPIRanks
from src.launch.supervise import processes
from src.launch.supervise.processes import Outcome
from src.run.status import Status
from tests.support import config

PLUGIN = str(Path(__file__).parents[1] / "plugin" / "conf")
STRATEGY = ("--config-dir", PLUGIN, "strategy=mpi_steps")
# Fifty timed steps and a few more, by processes that compute nothing.
STEPS = (*STRATEGY, "model=mlp", "tracking.backend=none", "out=run")
SHARED = ("hardware.device=cpu", "hardware.share_devices=true")
# Ends with whoever has started it, as a rank does.
FOLLOWS = "import ctypes, os, signal, time; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
Start = Callable[..., list[LaunchedProcess]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts mpiexec and, as its ranks, each piece of code."""
    begun: list[LaunchedProcess] = []

    def begin(*codes: str, mpiexec: str | None = None) -> list[LaunchedProcess]:
        words = [] if mpiexec is None else [f"strategy.mpiexec={mpiexec}"]
        chosen = config(*STRATEGY, f"workers={len(codes)}", f"batch={len(codes)}", *words)
        hosts = LocalHosts()
        before, spawn = MPIRanks().open(chosen, tmp_path, hosts)
        begun.extend(before)
        for spec, code in zip(MPIRanks().process_specs(chosen, hosts) if spawn else (), codes, strict=False):
            log = tmp_path / f"{spec.name}.log"
            process = spawn([sys.executable, "-c", FOLLOWS + code], spec.environment, log)
            begun.append(LaunchedProcess(len(begun) - 1, [], process, log, spec))
        return begun

    yield begin
    processes.stop(begun)


def wait_for(started: list[LaunchedProcess]) -> Outcome:
    return processes.wait(started, limit=60, tick=lambda: None)


def test_each_rank_is_told_its_place_and_writes_its_own_log(start: Start) -> None:
    show = "print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['PMI_RANK'])"
    started = start(*[show] * 3)
    assert wait_for(started) == Outcome()
    assert [rank.log.read_text() for rank in started[1:]] == [f"{n} 3 {n}\n" for n in range(3)]
    # Of mpiexec there is a log only if it doesn't start them.
    assert not (started[1].log.parent / "mpiexec.log").exists()


def test_the_parent_knows_the_ranks_themselves(start: Start) -> None:
    started = start(*["print(os.getpid())"] * 2)
    wait_for(started)
    assert [int(rank.log.read_text()) for rank in started[1:]] == [rank.process.pid for rank in started[1:]]


def test_ranks_that_end_at_different_times_all_end_well(start: Start) -> None:
    # MPICH's mpiexec would end the second one with the first.
    join = "from mpi4py import MPI; MPI.Finalize(); "
    started = start(join + "os._exit(0)", join + "time.sleep(0.7); print('whole', flush=True); os._exit(0)")
    assert wait_for(started) == Outcome()
    assert started[2].log.read_text() == "whole\n"


def test_a_killed_rank_is_to_blame_and_the_others_are_taken_along(start: Start) -> None:
    started = start("time.sleep(600)", "os.kill(os.getpid(), signal.SIGKILL)")
    # The first process of the list is mpiexec.
    assert wait_for(started) == Outcome(failed=2, code=-9)


@pytest.mark.parametrize("code", [1, Status.MISTAKE.process])
def test_a_rank_s_own_exit_status_reaches_the_parent(start: Start, code: int) -> None:
    started = start("time.sleep(600)", f"os._exit({code})")
    assert wait_for(started) == Outcome(failed=2, code=code)


@pytest.mark.slow
def test_a_failed_rank_is_to_blame_also_when_it_is_heard_late(start: Start) -> None:
    # MPICH's mpiexec ends the other one only if they have joined.
    join = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); "
    started = start(join + "time.sleep(600)", join + "os._exit(1)")
    other, failed = (rank.process for rank in started[1:])
    wait = failed.wait

    def late(timeout: float | None = None) -> int:
        code = wait(timeout)
        # mpiexec must not have ended the other one meanwhile.
        with contextlib.suppress(subprocess.TimeoutExpired):
            other.wait(2)
        return code

    failed.wait = late  # type: ignore[method-assign]
    assert wait_for(started) == Outcome(failed=2, code=1)


def test_ranks_end_with_mpiexec(start: Start) -> None:
    started = start(*["time.sleep(600)"] * 2)
    os.kill(started[0].process.pid, 9)
    outcome = wait_for(started)
    assert outcome == Outcome(failed=0, code=-9)
    assert all(rank.process.poll() is not None for rank in started)


@pytest.mark.parametrize("code", [0, 3])
def test_an_mpiexec_that_starts_nothing_is_to_blame(start: Start, tmp_path: Path, code: int) -> None:
    fake = tmp_path / "mpiexec"
    fake.write_text(f"#!/bin/sh\necho no slots\nexit {code}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    started = start("pass", "pass", mpiexec=str(fake))
    assert wait_for(started) == Outcome(failed=0, code=code or 1)
    assert started[0].log.read_text() == f"no slots\n{fake} started 0 of 2 processes\n"


def test_a_rank_s_number_is_found_under_either_mpi() -> None:
    assert agent.rank_of({"PMI_RANK": "3"}) == 3
    assert agent.rank_of({"OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2"}) == 2
    with pytest.raises(SystemExit, match="not an MPI that is known"):
        agent.rank_of({"RANK": "1"})


def test_another_mpi_s_library_is_looked_for_beside_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "mpiexec"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    specs = MPIRanks().process_specs(config(*STRATEGY, f"strategy.mpiexec={other}"), LocalHosts())
    first = {spec.environment["MPI4PY_LIBMPI"].split(":")[0] for spec in specs}
    assert first == {str(tmp_path / "bin" / ".." / "lib").replace("/bin/..", "")}


def test_an_mpiexec_that_isn_t_there_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")
    with pytest.raises(ConfigError, match="pip install mpich"):
        MPIRanks().check(config(*STRATEGY))


def run(commands: Any, behaviour: str) -> Any:
    return commands.run(*STEPS, *SHARED, f"strategy.behaviour={behaviour}", "hardware.sample_seconds=0.05")


def test_a_run_under_mpiexec_is_a_run(commands, mnist: None) -> None:
    completed = run(commands, "end")
    assert completed.returncode == 0, completed.stderr
    assert commands.left() == []
    folder = commands.folder / "run"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert (metrics["status"], metrics["epochs"], metrics["payload_bytes"]) == ("ok", 1, 2 * 60 * 4)
    assert {path.name for path in (folder / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}
    rows = [row.split(",") for row in (folder / "steps.csv").read_text().splitlines()[1:]]
    # Each rank added its number.
    assert [(row[0], float(row[5])) for row in rows] == [("0", 1.0)] * 60 + [("1", 1.0)] * 60
    # Both ranks have been seen, under their own numbers.
    trace = (folder / "trace.csv").read_text().splitlines()[1:]
    assert {row.split(",")[1] for row in trace} == {"0", "1"}
    environment = json.loads((folder / "environment.json").read_text())
    taken = [sum(float(row[3]) for row in rows if row[0] == rank) for rank in "01"]
    assert environment["mean_rank_train_seconds"] == pytest.approx(sum(taken) / 2, rel=1e-3)
    assert yaml.safe_load((folder / "config.yaml").read_text())["strategy"]["parity"] == "synchronous"


def test_a_rank_s_mistake_under_mpiexec_is_one_line(commands, mnist: None) -> None:
    completed = run(commands, "mistake")
    assert (completed.returncode, completed.stderr) == (2, "error: strategy.behaviour=mistake: is one\n")
    assert commands.left() == []
    assert not (commands.folder / "run").exists()


@pytest.mark.slow
def test_a_rank_s_crash_under_mpiexec_is_named(commands, mnist: None) -> None:
    completed = run(commands, "crash")
    assert completed.returncode == 1
    lines = completed.stderr.splitlines()
    assert lines[0] == "error: rank 1 failed with exit status 1; its log is run/logs/rank-1.log"
    assert lines[-1] == "  | RuntimeError: the glue has not dried"
    assert commands.left() == []

"""Ranks are started together and ended together; the one to blame is named."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from src.config import Config, command_line, compose
from src.launch.host import Host
from src.launch.launched import LaunchedProcess
from src.launch.process_spec import ProcessSpec
from src.launch.spawn import ChildProcess
from src.launch.supervise import processes
from src.launch.supervise.processes import Outcome
from src.machine.devices import Device
from src.run import files
from src.run.status import HOST_LOST, UNANNOUNCED, Status
from tests.support import environment_of, has_ended

LONG = "import time; time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {LONG}"
CORES = [Device("cpu", number, (number,)) for number in (0, 1)]
TWO_RANKS = ("strategy=ddp", "workers=2", "hardware.device=cpu", "hardware.share_devices=true", "out=run")
Start = Callable[..., list[LaunchedProcess]]
Until = Callable[[Callable[[], object], float, str], float]


def fail(code: int, after: float = 0.0) -> str:
    return f"import sys, time; time.sleep({after}); sys.exit({code})"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts each piece of code as a rank, in a session of its own as `ranks.start` does."""
    started: list[LaunchedProcess] = []

    def begin(*codes: str) -> list[LaunchedProcess]:
        for number, code in enumerate(codes):
            log = tmp_path / f"rank-{number}.log"
            with log.open("wb") as output:
                process = ChildProcess([sys.executable, "-c", code], stdout=output, start_new_session=True)
            spec = ProcessSpec({}, (number,), f"rank-{number}")
            started.append(LaunchedProcess(number, [Device("cpu", number, (0,))], process, log, spec))
        return started

    yield begin
    for rank in started:
        if rank.process.poll() is None:
            rank.process.kill()
            rank.process.wait()


def wait_for(started: list[LaunchedProcess], limit: float = 60) -> tuple[Outcome, float]:
    begun = time.monotonic()
    return processes.wait(started, limit=limit, tick=lambda: None), time.monotonic() - begun


def ended(started: list[LaunchedProcess]) -> bool:
    return all(rank.process.poll() is not None for rank in started)


def test_ranks_that_end_well_blame_nobody(start: Start) -> None:
    started = start(fail(0), fail(0, after=0.2))
    assert wait_for(started)[0] == Outcome()
    assert ended(started)


def test_the_watcher_is_told_that_time_passes(start: Start) -> None:
    ticks: list[float] = []
    processes.wait(start(fail(0, after=1)), limit=60, tick=lambda: ticks.append(time.monotonic()))
    assert len(ticks) >= 3


def test_a_rank_that_fails_ends_the_others(start: Start) -> None:
    started = start(LONG, fail(3))
    outcome, seconds = wait_for(started)
    assert outcome == Outcome(failed=1, code=3)
    assert seconds < 10
    assert ended(started)


def test_a_killed_rank_is_to_blame_even_when_its_peers_fail_first(start: Start) -> None:
    # A peer that loses its connection exits with an error before the killed one has been waited for.
    killed = f"import os, signal, time; time.sleep(0.3); os.kill(os.getpid(), {int(signal.SIGKILL)})"
    outcome, _ = wait_for(start(fail(1), killed, LONG))
    assert outcome == Outcome(failed=1, code=-signal.SIGKILL)


@pytest.mark.parametrize("other", [LONG, None], ids=["others run on", "alone"])
def test_a_killed_server_is_to_blame_for_those_that_are_killed_with_it(
    start: Start, other: str | None
) -> None:
    gone = f"import os, time; time.sleep(0.05); os.kill(os.getpid(), {int(signal.SIGKILL)})"
    started = start(gone, gone, *([other] if other else []))
    started[0].spec = dataclasses.replace(started[0].spec, serves=True)
    # It is heard of last.
    server, client = (rank.process for rank in started[:2])
    wait = server.wait

    def late(timeout: float | None = None) -> int:
        client.wait()
        return wait(timeout)

    server.wait = late  # type: ignore[method-assign]
    assert wait_for(started)[0] == Outcome(failed=0, code=-signal.SIGKILL)


@pytest.mark.parametrize("known", [Status.OUT_OF_MEMORY.process, Status.DISK_FULL.process])
def test_a_known_result_counts_more_than_the_failures_it_causes(start: Start, known: int) -> None:
    outcome, _ = wait_for(start(fail(1), fail(known, after=0.3)))
    assert outcome == Outcome(failed=1, code=known)


def test_one_that_ended_without_a_word_counts_more_than_the_failures_it_causes(start: Start) -> None:
    def status(launched: LaunchedProcess, code: int) -> int:
        return code or UNANNOUNCED

    started = start(fail(1), fail(0, after=0.3))
    outcome = processes.wait(started, limit=60, tick=lambda: None, status=status)
    assert outcome == Outcome(failed=1, code=UNANNOUNCED)


def test_ranks_that_hang_are_ended_at_the_limit(start: Start) -> None:
    started = start(LONG, LONG)
    outcome, seconds = wait_for(started, limit=0.5)
    assert outcome == Outcome(timed_out=True, code=1)
    assert 0.5 <= seconds < 10
    assert ended(started)


def test_a_rank_that_hears_no_request_to_end_is_killed(start: Start, until: Until) -> None:
    (rank,) = start(DEAF)
    until(lambda: rank.log.read_text() == "deaf\n", 60, "the rank's readiness")
    begun = time.monotonic()
    processes.stop([rank])
    assert rank.process.returncode == -signal.SIGKILL
    assert processes.TERMINATE_SECONDS <= time.monotonic() - begun < 10


@pytest.mark.parametrize("parent", ["sys.exit(0)", "sys.exit(1)", LONG])
def test_what_a_rank_has_started_is_ended_too(start: Start, until: Until, parent: str) -> None:
    child = f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {LONG!r}])"
    child += f"; print(child.pid, flush=True); {parent}"
    (rank,) = start(child)
    until(lambda: rank.log.read_text().endswith("\n"), 60, "the grandchild's start")
    wait_for([rank], limit=1)
    orphan = int(rank.log.read_text())
    until(lambda: has_ended(orphan), 10, "the grandchild's end")


def test_stopping_twice_does_no_harm(start: Start) -> None:
    started = start(fail(0), LONG)
    processes.stop(started)
    processes.stop(started)
    assert ended(started)


@pytest.fixture
def waiting_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for runs in which the program of a rank does nothing but wait."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/worker.py").write_text(LONG)
    for name in ("logs", "ranks/1"):
        (tmp_path / "run" / name).mkdir(parents=True)


def spawned(*words: str) -> Config:
    """Return the one cell of these overrides, whose ranks are spawned."""
    (config,) = compose.cells(command_line.parse([*words, "hardware.start_method=spawn"]))
    return config


@pytest.mark.usefixtures("waiting_worker")
def test_a_rank_is_started_pinned_and_told_its_place() -> None:
    mark = Path("run/ranks/1", files.READY)
    mark.touch()
    started = processes.start(spawned(*TWO_RANKS), Path("run"), own_devices=CORES, started=12.5)
    try:
        assert [rank.log for rank in started] == [Path(f"run/logs/rank-{n}.log") for n in (0, 1)]
        assert not mark.exists(), "it was another process's"
        ranks = [psutil.Process(rank.process.pid) for rank in started]
        seen = [environment_of(rank) for rank in ranks]
        for rank in ranks:
            assert rank.cmdline()[1:] == ["-u", "-m", "src.worker", "run/config.yaml"]
            assert os.getsid(rank.pid) == rank.pid
        assert [env["RANK"] for env in seen] == ["0", "1"]
        assert {env["WORLD_SIZE"] for env in seen} == {"2"}
        assert len({env["MASTER_PORT"] for env in seen}) == 1
        assert {env["OMP_NUM_THREADS"] for env in seen} == {"1"}
        # No rank sees a GPU that it doesn't train on.
        assert {env["CUDA_VISIBLE_DEVICES"] for env in seen} == {""}
        assert {env["SCALEGUIDE_PARENT"] for env in seen} == {str(os.getpid())}
        assert {env["SCALEGUIDE_STARTED"] for env in seen} == {"12.5"}
        for rank, env in zip(started, seen, strict=True):
            assert env["SCALEGUIDE_CORES"] == ",".join(map(str, rank.devices[0].cores))
    finally:
        processes.stop(started)
    assert ended(started)


@pytest.mark.usefixtures("waiting_worker")
def test_a_process_sees_its_gpus_by_what_names_them_whatever_their_order() -> None:
    own = [Device("gpu", 3, (2,), "GPU-d"), Device("gpu", 0, (0,), "MIG-a")]
    config = spawned("strategy=tf_mirrored", *TWO_RANKS[1:])
    started = processes.start(config, Path("run"), started=0.0, own_devices=own)
    try:
        (environment,) = [environment_of(psutil.Process(each.process.pid)) for each in started]
    finally:
        processes.stop(started)
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-d,MIG-a"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["SCALEGUIDE_CORES"] == "2,0"


@pytest.mark.usefixtures("waiting_worker")
def test_ranks_already_started_are_ended_when_a_later_one_cannot_be() -> None:
    before = set(psutil.Process().children())
    # The second rank's output can't be written.
    Path("run/logs/rank-1.log").mkdir()
    with pytest.raises(IsADirectoryError):
        processes.start(spawned(*TWO_RANKS), Path("run"), own_devices=CORES, started=0.0)
    assert Path("run/logs/rank-0.log").exists(), "the first one was started"
    assert set(psutil.Process().children()) <= before


def serving(started: list[LaunchedProcess], *indices: int, dispensable: bool = True) -> None:
    """Makes them processes that have no end of their own."""
    for index in indices:
        spec = dataclasses.replace(started[index].spec, serves=True, dispensable=dispensable)
        started[index].spec = spec


def test_who_serves_is_ended_with_the_others(start: Start) -> None:
    started = start(LONG, fail(0, after=0.2))
    serving(started, 0)
    assert wait_for(started)[0] == Outcome()
    assert ended(started)


def test_the_job_goes_on_without_who_is_dispensable_and_offers_to_revive_it(start: Start) -> None:
    started = start(fail(1), LONG, fail(0, after=1))
    serving(started, 0, 1)
    offered: list[LaunchedProcess] = []
    assert (
        processes.wait(started, limit=60, tick=lambda: None, revive=lambda rank: bool(offered.append(rank)))
        == Outcome()
    )
    assert offered == [started[0]]


def test_who_is_dispensable_ends_the_job_if_it_never_came(start: Start) -> None:
    started = start(fail(3, after=0.3), fail(4), LONG, LONG)
    serving(started, 0, 1, 2)
    outcome = processes.wait(started, limit=60, tick=lambda: None, ready=lambda rank: rank is not started[0])
    assert outcome == Outcome(failed=0, code=3)


def test_the_last_dispensable_one_that_is_lost_ends_the_job(start: Start) -> None:
    started = start(fail(1), fail(2, after=2), LONG)
    serving(started, 0, 1)
    assert wait_for(started)[0] == Outcome(failed=1, code=2)


def test_a_lost_server_ends_the_job(start: Start) -> None:
    started = start(LONG, fail(4), LONG)
    serving(started, 0)
    serving(started, 1, dispensable=False)
    assert wait_for(started)[0] == Outcome(failed=1, code=4)


def test_a_revived_process_is_watched_again(start: Start) -> None:
    started = start(fail(1), LONG)
    serving(started, 0)
    (second,) = start(fail(5, after=0.2))[2:]
    chances = iter([True, False])

    def revive(rank: LaunchedProcess) -> bool:
        rank.process = second.process
        return next(chances)

    outcome = processes.wait(started[:2], limit=60, tick=lambda: None, revive=revive)
    assert outcome == Outcome(failed=0, code=5)


def test_a_lost_host_is_to_blame_and_named_by_its_rank_however_that_ended(start: Start) -> None:
    def blamed(codes: dict[int, int]) -> Outcome:
        """Return the outcome of four processes that have ended with these statuses, the others well."""
        started, gone = start(*[fail(0)] * 4)[-4:], Host(lost="it is gone")
        for launched in started[2:]:
            launched.host = gone
        # As a launcher's own process has none.
        started[2].devices = []
        return processes.wait(
            started,
            limit=60,
            tick=lambda: None,
            status=lambda launched, _: codes.get(launched.rank, 0),
        )

    assert blamed({0: 1, 1: 1, 2: HOST_LOST, 3: -signal.SIGKILL}) == Outcome(3, HOST_LOST)
    assert blamed({0: 1, 2: HOST_LOST}).failed == 2


def test_blame_waits_for_hosts_that_have_not_answered(start: Start) -> None:
    class Slow(Host):
        """A host whose loss is noticed late."""

        def answered(self, since: float) -> bool:
            return time.monotonic() > since + 2.5

    started = start(fail(1), DEAF)
    started[1].host = Slow()

    def status(launched: LaunchedProcess, code: int) -> int:
        return HOST_LOST if launched is started[1] else code

    threading.Timer(2.0, started[1].process.signal_group, [signal.SIGKILL]).start()
    outcome = processes.wait(started, limit=60, tick=lambda: None, status=status)
    assert outcome == Outcome(1, HOST_LOST)

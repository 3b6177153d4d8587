"""A forked process is its client's as a started one is.

Environment, cores, log, session, exit status, end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from src.launch.launched import LaunchedProcess
from src.launch.local import warm_start
from src.launch.local.agents import AgentProcess
from src.launch.local.warm_start import ForkedProcess, ForkServerProcess, fork_or_spawn, spawn_for
from src.launch.process_spec import ProcessSpec
from src.launch.spawn import spawn_child
from src.launch.supervise import processes
from src.launch.supervise.processes import Outcome
from src.machine.devices import Device
from src.run.variables import FORK_SERVERS
from tests.support import ROOT, config, has_ended

LONG = "import time; time.sleep(600)"
DESCRIBE = """
import json, os, sys
print(json.dumps({
    "warm": "xml.dom.minidom" in sys.modules, "argv": sys.argv[2:], "name": __name__,
    "environment": dict(os.environ), "cores": sorted(os.sched_getaffinity(0)), "folder": os.getcwd(),
    "nice": os.nice(0), "leads": os.getsid(0) == os.getpid(), "input": sys.stdin.read(), "pid": os.getpid(),
    "open": sorted(map(int, os.listdir("/proc/self/fd"))), "random": __import__("random").random(),
}))
"""
# Starts a command as a rank, with its output in a file.
SPAWN = """
import subprocess, sys
from pathlib import Path
from src.machine import folders
folders.SPARE_SOCKET -= int(sys.argv.pop(1))
from src.launch.local.warm_start import spawn_for
from tests.support import config
log, *command = sys.argv[1:]
process = spawn_for(config("strategy=ddp", "workers=2", "hardware.device=cpu"))(command, {}, Path(log))
sys.exit(process.wait(30))
"""
Until = Callable[[Callable[[], object], float, str], float]


def command(code: str, *further: str) -> list[str]:
    return [sys.executable, "-u", "-m", "tests.launch.local.run_code", code, *further]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServerProcess]:
    running = ForkServerProcess(["xml.dom.minidom"])
    yield running
    running.close()


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


class Forked:
    """Starts code through a server."""

    def __init__(self, address: Path, folder: Path) -> None:
        self.address, self.folder, self.started = address, folder, 0

    def __call__(self, code: str, *further: str, **environment: str) -> tuple[Any, Path]:
        log = self.folder / f"{self.started}.log"
        self.started += 1
        return fork_or_spawn(self.address, command(code, *further), environment, log), log


@pytest.fixture
def fork(server: ForkServerProcess, tmp_path: Path) -> Forked:
    return Forked(server.address, tmp_path)


def test_a_forked_process_has_its_clients_environment_and_nothing_of_the_servers(
    fork: Forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_CLIENT", "1")
    cores = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, cores[-1:])
        process, log = fork(DESCRIBE, "--an", "argument", OF_THE_RANK="2", OMP_NUM_THREADS="3")
    finally:
        os.sched_setaffinity(0, cores)
    assert process.wait(30) == 0
    described = json.loads(log.read_text())
    assert described["warm"] and described["name"] == "__main__" and described["argv"] == ["--an", "argument"]
    environment = described["environment"]
    assert (environment["OF_THE_CLIENT"], environment["OF_THE_RANK"]) == ("1", "2")
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["MALLOC_TOP_PAD_"], "as a spawned process has it"
    assert "JE_ARROW_MALLOC_CONF" not in environment
    assert (described["cores"], described["folder"], described["nice"]) == (cores[-1:], str(ROOT), os.nice(0))
    assert described["leads"] and described["pid"] == process.pid and described["input"] == ""
    # The fourth lists them: no socket of the server is left in its child.
    assert described["open"] == [0, 1, 2, 3]


def test_no_two_forked_processes_have_the_same_random_numbers(fork: Forked) -> None:
    processes_and_logs = [fork(DESCRIBE) for _ in range(2)]
    assert [process.wait(30) for process, _ in processes_and_logs] == [0, 0]
    assert len({json.loads(log.read_text())["random"] for _, log in processes_and_logs}) == 2


def test_a_log_is_continued(fork: Forked) -> None:
    first, log = fork("print('first')")
    assert first.wait(30) == 0
    fork.started = 0
    second, again = fork("print('second')")
    assert second.wait(30) == 0
    assert again == log and log.read_text() == "first\nsecond\n"


@pytest.mark.parametrize(
    ("code", "status", "last_words"),
    [
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('a sentence')", 1, "a sentence\n"),
        ("import os; os._exit(5)", 5, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_its_exit_status_is_known_and_its_last_words(
    fork: Forked, code: str, status: int, last_words: str
) -> None:
    process, log = fork(code)
    assert isinstance(process, ForkedProcess)
    assert process.wait(30) == process.poll() == status
    assert log.read_text().endswith(last_words)


def test_a_running_one_is_waited_for_and_ended_with_its_children(fork: Forked, until: Until) -> None:
    code = f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {LONG!r}])"
    process, log = fork(f"{code}; print(child.pid, flush=True); {LONG}")
    until(log.read_text, 30, "the grandchild")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    launched = LaunchedProcess(0, [Device("cpu", 0, (0,))], process, log, ProcessSpec({}, (0,), "rank-0"))
    assert processes.wait([launched], limit=0.1, tick=lambda: None) == Outcome(timed_out=True, code=1)
    assert process.poll() == -signal.SIGTERM
    until(lambda: has_ended(int(log.read_text())), 10, "the grandchild's end")


def test_it_ends_with_its_client(server: ForkServerProcess, tmp_path: Path, until: Until) -> None:
    log = tmp_path / "log"
    code = f"""
from pathlib import Path
from src.launch.local.warm_start import fork_or_spawn
process = fork_or_spawn(Path({str(server.address)!r}), {command(LONG)!r}, {{}}, Path({str(log)!r}))
print(process.pid, flush=True)
process.wait()
"""
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    assert not has_ended(pid)
    client.kill()
    client.wait()
    client.stdout.close()
    until(lambda: has_ended(pid), 10, "the forked process's end")


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "its parent was killed"])
def test_a_server_ends_with_its_parent_and_leaves_neither_processes_nor_files(
    tmp_path: Path, until: Until, killed: bool
) -> None:
    code = f"""
from pathlib import Path
from src.launch.local.warm_start import ForkServerProcess, fork_or_spawn
server = ForkServerProcess(["json"])
forked = fork_or_spawn(server.address, {command(LONG)!r}, {{}}, Path("log"))
print(server.address, forked.pid, flush=True)
input()
server.close()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert parent.stdin is not None and parent.stdout is not None
    address, pid = parent.stdout.readline().split()
    server = psutil.Process(int(pid)).ppid()
    assert "src.launch.local.fork_server" in psutil.Process(server).cmdline()
    if killed:
        parent.kill()
    else:
        parent.stdin.write("\n")
        parent.stdin.close()
    parent.wait()
    parent.stdout.close()
    until(lambda: has_ended(server) and has_ended(int(pid)), 10, "everybody's end")
    assert not Path(address).parent.exists()


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        (["tests.launch.local.with_thread"], "2 threads after importing tests.launch.local.with_thread"),
        (["no_such_module"], "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_where_forking_is_not_safe_or_fails_the_process_is_spawned_and_its_log_says_why(
    tmp_path: Path, modules: Sequence[str], reason: str
) -> None:
    server = ForkServerProcess(modules)
    try:
        process, log = Forked(server.address, tmp_path)("print('runs all the same')")
        assert isinstance(process, subprocess.Popen)
        assert process.wait(30) == 0
        assert log.read_text() == (
            f"started by spawn, for it could not be forked: {reason}\nruns all the same\n"
        )
    finally:
        server.close()


def test_a_server_that_is_gone_costs_nothing_but_time(tmp_path: Path) -> None:
    process, log = Forked(tmp_path / "nobody", tmp_path)("print('runs all the same')")
    assert process.wait(30) == 0
    assert log.read_text().endswith("runs all the same\n")


def test_a_process_whose_server_is_killed_has_ended(tmp_path: Path) -> None:
    own = ForkServerProcess(["json"])
    process, _ = Forked(own.address, tmp_path)(LONG)
    assert isinstance(process, AgentProcess)
    psutil.Process(psutil.Process(process.pid).ppid()).kill()
    own.close()
    assert process.wait(30) == 1
    psutil.Process(process.pid).kill()
    assert not own.address.parent.exists()


@pytest.mark.parametrize(
    ("words", "forks"),
    [
        ([], True),
        (["hardware.start_method=forkserver"], True),
        (["hardware.start_method=spawn"], False),
    ],
)
def test_the_start_method_says_how_ranks_are_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: Sequence[str], forks: bool
) -> None:
    # Somebody else's server, so that none is started.
    (tmp_path / "torch").touch()
    monkeypatch.setenv(FORK_SERVERS, str(tmp_path))
    chosen = config("strategy=ddp", "workers=2", "hardware.device=cpu", *words)
    before = set(psutil.Process().children())
    assert (spawn_for(chosen) is spawn_child) is not forks
    for variable in warm_start.AT_START:
        with monkeypatch.context() as patched:
            patched.setenv(variable, "1")
            assert spawn_for(chosen) is spawn_child, "an interpreter reads it as it starts"
    assert set(psutil.Process().children()) <= before, "no server was started"


@pytest.mark.parametrize("forks", [True, False])
def test_a_long_path_of_temporary_files_is_no_obstacle(tmp_path: Path, forks: bool) -> None:
    """Sockets are made elsewhere; where no server can be started, ranks are spawned; nothing is left."""
    # Longer than the path of a Unix socket may be (sun_path, 108 bytes).
    long = tmp_path / ("x" * 120)
    long.mkdir()
    left_out = {FORK_SERVERS, *warm_start.AT_START}
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    log = tmp_path / "log"
    parent = [
        sys.executable,
        "-c",
        SPAWN,
        "0" if forks else "1000",
        str(log),
        *command("print('runs all the same')"),
    ]
    subprocess.run(parent, cwd=ROOT, env={**environment, "TMPDIR": str(long)}, check=True)
    *reason, output = log.read_text().splitlines()
    assert reason == (
        [] if forks else ["started by spawn, for it could not be forked: AF_UNIX path too long"]
    )
    assert output == "runs all the same"
    assert not list(long.glob("scaleguide*"))

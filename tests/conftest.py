"""Commands as a user types them, each in a folder of its own and never outliving its test."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import threadpoolctl
import yaml
from xdist.remote import Producer

from src.config import CONF, compose
from src.data import available
from src.data.errors import DataError
from src.launch.local.warm_start import AT_START
from src.machine import memory
from src.run import variables
from tests import scheduling
from tests.forking import ForkedCommand, start_fork_server
from tests.nvidia_driver import Driver
from tests.support import SHORT, mounted

ROOT = Path(__file__).parents[1]
# Nothing that a test starts takes longer, even on a busy machine.
LIMIT = 240.0
# Tests run on CPUs, whatever GPUs this machine has; those of a test are its driver's.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
Started = subprocess.Popen[bytes] | ForkedCommand


class Commands:
    """Runs `python -m src.train` in `folder`, which is empty at first.

    `forks` says that it and its ranks may be forked from processes that all tests share. `python` is how
    Python is started, by default as here.
    """

    def __init__(self, folder: Path) -> None:
        self.forks = True
        self.python = [sys.executable]
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._outputs = folder.with_name(f"{folder.name}-outputs")
        self._outputs.mkdir()

    def start(self, *words: str, **environment: str) -> Started:
        """Start the command; `output` gives what it printed."""
        if self.forks:
            start_fork_server("tensorflow" if any("strategy=tf_" in word for word in words) else "torch")
        left_out = (
            {"SCALEGUIDE_MAX_MINUTES"} if self.forks else {"SCALEGUIDE_MAX_MINUTES", variables.FORK_SERVERS}
        )
        whole = {
            # By default the store would be the repository's.
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder}/mlflow.db",
            **{key: value for key, value in os.environ.items() if key not in left_out},
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        streams = self._outputs / "out", self._outputs / "err"
        for path in streams:
            path.write_bytes(b"")
        # Another program than ours, or variables that an interpreter reads as it starts, want a new one.
        plain = "PYTHONPATH" not in environment and not whole.keys() & set(AT_START)
        if self.forks and plain and self.python == [sys.executable]:
            return ForkedCommand(words, self.folder, whole, *streams)
        with streams[0].open("ab") as out, streams[1].open("ab") as err:
            command = [*self.python, "-m", "src.train", *words]
            return subprocess.Popen(
                command, cwd=self.folder, env=whole, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    def output(self) -> tuple[str, str]:
        """Standard output and standard error of the last command so far."""
        return (self._outputs / "out").read_text(), (self._outputs / "err").read_text()

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end."""
        process = self.start(*words, **environment)
        code = process.wait(LIMIT)
        return subprocess.CompletedProcess(process.args, code, *self.output())

    def left(self) -> list[psutil.Process]:
        """Processes that work in the folder: the command and its ranks."""
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        return processes

    def rank(self, number: int) -> psutil.Process:
        """The process of a running rank."""
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                if process.name() == f"rank-{number}":
                    return process
        raise LookupError(f"rank {number} doesn't run in {self.folder}")

    def end(self) -> None:
        """Kills what is left."""
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.kill()


@pytest.fixture(autouse=True, scope="session")
def defaults_once() -> Iterator[None]:
    """Composes the choices of groups once: tests compose some thousand configurations of this project's."""
    original = compose.group_defaults
    known = functools.cache(lambda groups, extra: original(groups, (), extra))

    def remembered(groups: Sequence[str], folders: Sequence[Path] = (), extra: Sequence[str] = ()) -> Any:
        # A command that is called in this process has its user's folders among its words.
        if folders or compose.CONF != CONF or any("--config-dir" in word for word in sys.argv):
            return original(groups, folders, extra)
        return copy.deepcopy(known(tuple(groups), tuple(extra)))

    compose.group_defaults = remembered
    yield
    compose.group_defaults = original


def pytest_configure() -> None:
    scheduling.make_way()


def pytest_collection_finish() -> None:
    """Have numerical libraries, which are loaded by now, use one thread: the others' cores aren't free."""
    threadpoolctl.threadpool_limits(1)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> scheduling.TimedApart:
    return scheduling.TimedApart(config, log)


@pytest.fixture(autouse=True)
def default_type() -> Iterator[None]:
    """No test leaves another type of numbers than fp32 to those after it, which then fail or wait forever."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_default_dtype() != torch.float32:
        torch.set_default_dtype(torch.float32)
        pytest.fail("left another default dtype of torch")


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Devices are taken in a folder of the tests' own: no test waits for what else goes on here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_token() -> Iterator[None]:
    """Servers and workers that are threads of the tests are of one run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variables.TOKEN, variables.new_token())
        yield


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the test's module has trained its cases; gigabytes, which go when its tests are done."""
    folder = tmp_path_factory.mktemp("cases")
    request.module.train_cases(folder)
    yield folder
    shutil.rmtree(folder)


def _until(condition: Callable[[], object], seconds: float, what: str) -> float:
    start = time.monotonic()
    while not condition():
        passed = time.monotonic() - start
        assert passed < seconds, f"{what}: not within {seconds:g} s"
        time.sleep(0.02)
    return time.monotonic() - start


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], object], float, str], float]:
    """Polls a condition; returns the seconds it took, fails after the given ones."""
    return _until


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """Commands in a folder of the test's own."""
    made = Commands(tmp_path.resolve() / "here")
    yield made
    made.end()


@pytest.fixture(scope="module")
def module_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Commands]]:
    """Makes folders for runs that the tests of a file share."""
    made: list[Commands] = []

    def make() -> Commands:
        made.append(Commands(tmp_path_factory.mktemp("run").resolve() / "here"))
        return made[-1]

    yield make
    for each in made:
        each.end()
        shutil.rmtree(each.folder.parent, ignore_errors=True)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, mnist: None) -> Iterator[Callable[[str], Path]]:
    """The folder of one short run of a strategy, made when first asked for; `stderr` lies beside it."""
    made: dict[str, Commands] = {}

    def folder(strategy: str) -> Path:
        if strategy not in made:
            made[strategy] = commands = Commands(tmp_path_factory.mktemp(strategy).resolve() / "here")
            backend = "sqlite" if strategy == "single" else "none"
            completed = commands.run(f"strategy={strategy}", f"tracking.backend={backend}", "out=run", *SHORT)
            assert completed.returncode == 0, completed.stderr
            (commands.folder / "stderr").write_text(completed.stderr)
        return made[strategy].folder / "run"

    yield folder
    for commands in made.values():
        commands.end()


def _need(name: str, elsewhere: Path) -> None:
    dataset = yaml.safe_load((ROOT / "conf/dataset" / f"{name}.yaml").read_text())
    try:
        # The commands run elsewhere, where the repository's own prepared/ isn't found.
        with contextlib.chdir(elsewhere):
            available.ensure(dataset)
    except DataError as error:
        if "could not be fetched from any source" not in str(error) or "sha256" in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> None:
    """MNIST in the cache, or the test is skipped with the reason."""
    _need("mnist", tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="session")
def fashion_mnist(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fashion-MNIST in the cache, or the test is skipped with the reason."""
    _need("fashion_mnist", tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture
def install_driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Driver]:
    """A function that installs a driver with GPUs of these UUIDs, all of which this process may use."""

    def install(*uuids: str) -> Driver:
        driver = Driver(*uuids)
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return driver

    return install


@pytest.fixture
def memory_limit() -> Iterator[Callable[[int], list[str]]]:
    """Makes the words that start Python in a cgroup whose processes may use so many bytes together.

    Only root may make one.
    """
    made: list[Path] = []

    def limited(count: int) -> list[str]:
        counts = [path for path in memory.counters() if path.name != "vmstat" and path.exists()]
        if not counts:
            pytest.skip("no cgroup counts memory here")
        group = counts[0].parent / f"scaleguide-test-{os.getpid()}-{len(made)}"
        limit = "memory.max" if counts[0].name == "memory.events" else "memory.limit_in_bytes"
        try:
            group.mkdir()
            made.append(group)
            (group / limit).write_text(str(count))
        except OSError as error:
            pytest.skip(f"no cgroup with a limit of memory can be made here: {error}")
        into = f"import os, sys; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); "
        again = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        return [sys.executable, "-c", into + again]

    yield limited
    for group in made:
        group.rmdir()


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 64 KiB; only root may mount one."""
    with mounted(tmp_path_factory.mktemp("small") / "disk", "size=64k") as place:
        yield place

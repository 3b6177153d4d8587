"""Start ranks by forking them from a fork server, a process that has imported their framework already.

Each framework has one fork server, which lives as long as the parent and serves all cells of a sweep.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from src.config import Config
from src.launch import surroundings
from src.launch.local.agents import AgentProcess, send_line
from src.launch.local.fork_server import SINGLE_THREADED
from src.launch.spawn import KEEP_FREED_MEMORY, QUIET, Process, Spawn, spawn_child
from src.machine.folders import for_sockets
from src.run.variables import FORK_SERVERS, THREADS

# Variables that an interpreter reads only as it starts, so that forked processes would miss them.
AT_START = ("PYTHONPROFILEIMPORTTIME", "PYTHONFAULTHANDLER", "PYTHONHASHSEED", "LD_PRELOAD")
_servers: dict[str, ForkServerProcess] = {}


class ForkServerProcess:
    """A running fork server, which ends with the process that has started it.

    The attribute `address` is the path of the server's Unix socket.
    """

    def __init__(self, modules: Sequence[str], address: Path | None = None) -> None:
        """Start a server at `address`, or in a new folder, that imports `modules`.

        Clients may connect at once, and are served after the imports.

        Raises OSError where there can't be a socket or a process.
        """
        self._folder = None if address else tempfile.mkdtemp(prefix="scaleguide-", dir=for_sockets())
        self.address = address or Path(str(self._folder), "socket")
        try:
            self._process = self._start(modules)
        except OSError:
            self._remove_folder()
            raise

    def _start(self, modules: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the server's process, listening at `address`."""
        variables = {**dict.fromkeys(THREADS, "1"), "CUDA_VISIBLE_DEVICES": "", **SINGLE_THREADED, **QUIET}
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.address))
            listening.listen(64)
            number = listening.fileno()
            return subprocess.Popen(
                [sys.executable, "-m", "src.launch.local.fork_server", str(number), *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**surroundings.inherited(), **KEEP_FREED_MEMORY, **variables},
                pass_fds=[number],
                # A Ctrl-C reaches the parent alone.
                start_new_session=True,
            )

    def close(self) -> None:
        """End the server and the processes that it has forked."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        # The server removes it itself, unless it was killed.
        self._remove_folder()

    def _remove_folder(self) -> None:
        """Remove the folder of the socket, if it was made for that."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class ForkedProcess(AgentProcess):
    """A process that a fork server has started."""


def spawn_for(config: Config) -> Spawn:
    """Return the function that starts the processes of a run; start the fork server that it may need.

    Processes are forked where `hardware.start_method` asks for that, or leaves it open and the device is the
    CPU. They are spawned where a variable of `AT_START` is set, or no fork server can be started.
    """
    forks = config.hardware.start_method == "forkserver" or (
        config.hardware.start_method == "auto" and config.hardware.device == "cpu"
    )
    if not forks or any(name in os.environ for name in AT_START):
        return spawn_child
    try:
        return partial(fork_or_spawn, _address_for(config))
    except OSError as reason:
        return partial(_spawn_instead, str(reason))


def _address_for(config: Config) -> Path:
    """Return the socket of the framework's fork server; start one if none runs yet."""
    if FORK_SERVERS in os.environ:
        address = Path(os.environ[FORK_SERVERS], config.framework)
        if address.exists():
            return address
    if config.framework not in _servers:
        paths = (config.strategy["entry"], *(each[config.framework] for each in (config.model, config.task)))
        modules = [path.rpartition(".")[0] for path in paths]
        _servers[config.framework] = ForkServerProcess(modules)
        atexit.register(_servers[config.framework].close)
    return _servers[config.framework].address


def fork_or_spawn(address: Path, command: list[str], environment: Mapping[str, str], log: Path) -> Process:
    """Have the fork server at `address` start a process that runs `command`; spawn it if that fails.

    `environment` are variables besides the parent's. Output is appended to `log`, which also says why a
    process had to be spawned.
    """
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(address))
        stream = connection.makefile("rwb")
        connection.close()
        request = {
            "command": command,
            "environment": {**surroundings.inherited(), **KEEP_FREED_MEMORY, **environment},
            "log": str(log.absolute()),
            "folder": os.getcwd(),
            "nice": os.nice(0),
            "cores": sorted(os.sched_getaffinity(0)),
        }
        send_line(stream, request)
        return ForkedProcess(stream, command)
    except OSError as reason:
        return _spawn_instead(str(reason), command, environment, log)


def _spawn_instead(reason: str, command: list[str], environment: Mapping[str, str], log: Path) -> Process:
    """Spawn a process that should have been forked, and write the reason into `log`."""
    with log.open("a") as output:
        output.write(f"started by spawn, for it could not be forked: {reason}\n")
    return spawn_child(command, environment, log)

"""Ranks that `mpiexec` starts, all on this host: MPICH's from pip, or any on the PATH (`strategy.mpiexec`).

The parent starts one `mpiexec -n N python -m src.launch.enter`, whose processes each ask it for a rank to run
and tell how that ended. So a rank has the same environment, log and cores as under other launchers, the
parent knows its process and its exit status, and `mpiexec` is watched like one more process of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from src.config import Config, ConfigError
from src.launch import place, ranks, torch
from src.launch.enter import tell
from src.launch.place import Place
from src.launch.ranks import Rank, Spawn
from src.launch.tensorflow import QUIET

# Until all processes have been started; an interpreter without libraries starts at once.
ENTER_SECONDS = 60.0
# Of a rank that ended with mpiexec, or with its process there.
EXIT_TAKEN_ALONG = 1
# Open MPI refuses root, and more ranks than cores; the ranks pin themselves. Others ignore this.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


def places(config: Config) -> list[Place]:
    """The ranks to start."""
    library = _library(program(config))
    # Lightning's own agreements between ranks go through gloo.
    told = torch.environments(config) if config.framework == "torch" else [QUIET] * config.workers
    return [
        place.of_rank(rank, config.workers, (rank,), {**library, **each}) for rank, each in enumerate(told)
    ]


def check(config: Config) -> None:
    """Raises `ConfigError` where nothing can be started."""
    named = config.strategy.get("mpiexec")
    if program(config) is None:
        hint = (
            "none is installed beside this Python; `pip install mpich`, or strategy.mpiexec=mpiexec for "
            "the one on the PATH"
            if named is None
            else "no such program, here or on the PATH; leave it away for the one that pip installed"
        )
        raise ConfigError(f"strategy.mpiexec={named}: {hint}")
    if importlib.util.find_spec("mpi4py") is None:
        raise ConfigError(f"strategy={config.strategy['name']}: needs mpi4py; `pip install mpi4py`")


def program(config: Config) -> str | None:
    """The path of the `mpiexec` that `strategy.mpiexec` names, or of pip's; `None` where it isn't."""
    named = config.strategy.get("mpiexec")
    return shutil.which(named or Path(sysconfig.get_path("scripts"), "mpiexec"))


def _library(mpiexec: str | None) -> dict[str, str]:
    """Where mpi4py is to look for the library: beside mpiexec first, as the two must be of one MPI."""
    assert mpiexec is not None, "a checked configuration has one"
    prefix = Path(mpiexec).resolve().parent.parent
    return {"MPI4PY_LIBMPI": os.pathsep.join((f"{prefix}/lib", f"{prefix}/lib64", ""))}


class Entered:
    """A rank that one of mpiexec's processes runs; to the parent as good as a child of its own."""

    def __init__(self, stream: IO[bytes], command: list[str]) -> None:
        told = stream.readline()
        if not told:
            raise ChildProcessError("mpiexec's process couldn't start its rank; logs/mpiexec.log says why")
        self.pid: int = json.loads(told)["pid"]
        self._command = command
        self._code = EXIT_TAKEN_ALONG
        self._ended = threading.Event()
        threading.Thread(target=self._listen, args=(stream,), daemon=True).start()

    def poll(self) -> int | None:
        return self._code if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self._command, timeout or 0.0)
        return self._code

    def _listen(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._code = json.loads(stream.readline())["code"]
        self._ended.set()
        # Closed any earlier, it would tell a process that still ends that the parent has gone.
        with contextlib.suppress(OSError):
            stream.read()


def begin(config: Config, logs: Path) -> tuple[list[Rank], Spawn | None]:
    """Starts `mpiexec`; its processes then wait for a rank each. There is no `Spawn` if they don't come."""
    found = program(config)
    log = logs / "mpiexec.log"
    with tempfile.TemporaryDirectory(prefix="scaleguide-") as folder, socket.socket(socket.AF_UNIX) as door:
        address = str(Path(folder, "door"))
        door.bind(address)
        door.listen(config.workers)
        command = [str(found), "-n", str(config.workers)]
        command += [sys.executable, "-m", "src.launch.enter", address]
        process = ranks.spawn_child(command, OPEN_MPI, log)
        mpiexec = Rank(0, [], process, log, Place({}, (), "mpiexec"))
        try:
            entered = _let_in(door, process, config.workers)
        except BaseException:
            ranks.stop([mpiexec])
            raise
    if len(entered) < config.workers:
        ranks.stop([mpiexec])
        with log.open("a") as output:
            print(f"{found} started {len(entered)} of {config.workers} processes", file=output)
        # It may know of no failure.
        process.returncode = process.returncode or 1
        return [mpiexec], None
    # Its processes stay until it is ended: it serves them. What it says of ranks from now on, and of its own
    # end, the parent knows better.
    mpiexec.place = dataclasses.replace(mpiexec.place, serves=True)
    mpiexec.log = logs / "rank-0.log"
    log.unlink()

    def spawn(command: list[str], environment: Mapping[str, str], log: Path) -> Entered:
        stream = entered[int(environment["RANK"])]
        told: dict[str, Any] = {"environment": {**ranks.KEEP_FREED_MEMORY, **environment}}
        tell(stream, {**told, "command": command, "log": str(log)})
        return Entered(stream, command)

    return [mpiexec], spawn


def _let_in(door: socket.socket, mpiexec: subprocess.Popen[bytes], count: int) -> dict[int, IO[bytes]]:
    """A stream to the process of each rank; fewer than `count` if mpiexec ends, or takes too long."""
    entered: dict[int, IO[bytes]] = {}
    deadline = time.monotonic() + ENTER_SECONDS
    door.settimeout(0.1)
    while len(entered) < count and mpiexec.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            connection, _ = door.accept()
            connection.settimeout(None)
            stream = connection.makefile("rwb")
            if line := stream.readline():
                entered[json.loads(line)["rank"]] = stream
    return entered

"""Run on a host what the parent, which is elsewhere, asks for: processes, files, samples of the hardware.

An agent is started by the cluster's engine, and knows nothing of it. It has a lease: when the parent has not
called for some time, whatever the reason, the agent kills its processes and itself. Processes end with the
agent, as the kernel sees to.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from src.data import prepared
from src.launch.cluster import clocks, facts
from src.launch.cluster.run_folder import Piece, RunFolder, write
from src.launch.local import reaper
from src.launch.mpi.agents import MPIAgents
from src.launch.spawn import Process, spawn_child
from src.machine import device_locks
from src.machine.device_locks import Lease, Request
from src.machine.devices import Device
from src.machine.folders import for_sockets
from src.measure.sampler import Sampler
from src.run import files, variables

# How often the lease is looked at; it ends so much late at most.
LEASE_SECONDS = 0.5
# For the first call.
START_SECONDS = 60.0
EXPIRED = "nothing was heard of the parent"


class HostAgent:
    """The agent of one host, whose public methods the parent calls through `handle`."""

    def __init__(self, address: str, lost_seconds: float) -> None:
        """Begin the lease.

        Args:
            address: by which the cluster's other hosts reach this one.
            lost_seconds: how long the parent may be silent.
        """
        self._address = address
        self._folder = Path(tempfile.mkdtemp(prefix="scaleguide-agent-", dir=for_sockets()))
        # Its processes inherit the pipe, so that the folder stays until they have ended.
        self._alive = reaper.remove_at_end("folder", str(self._folder), detached=True)
        self._run = RunFolder(self._folder / "none")
        self._children: dict[str, Process] = {}
        self._mpi: MPIAgents | None = None
        self._ended: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._lease = Lease()
        self._stand_ins: dict[int, IO[str]] = {}
        self._sampler: Sampler | None = None
        # The kernel kills a process when the thread that has started it ends: this one lasts.
        self._starter = ThreadPoolExecutor(1, "starter")
        # What it does first may take longer: it looks at the host's devices and libraries.
        self._heard = time.monotonic() + START_SECONDS
        threading.Thread(target=self._expire, args=(lost_seconds,), name="lease", daemon=True).start()

    def handle(self, method: str, *arguments: Any) -> Any:
        """Call a method of this agent for the parent, and renew the lease."""
        self._heard = max(self._heard, time.monotonic())
        try:
            return getattr(self, method)(*arguments)
        finally:
            self._heard = time.monotonic()

    def clocks(self) -> clocks.Clocks:
        """Return the time of this host's clocks."""
        return clocks.read()

    def describe(self, kind: str, cores_per_device: int, libraries: list[str]) -> facts.HostFacts:
        """Return what the parent must know of this host."""
        return facts.of_this_host(self._address, kind, cores_per_device, libraries)

    def take(self, request: Request) -> list[Device] | str:
        """Take devices for a job, or return which of them are taken by whom."""
        self._lease.close()
        try:
            self._lease = device_locks.take([request])
        except (device_locks.Taken, device_locks.NoFolder) as error:
            return str(error)
        return self._lease.of(request)

    def has_data(self, dataset: Mapping[str, Any]) -> bool:
        """Return whether the prepared arrays of a dataset are here."""
        return prepared.locate(dataset) is not None

    def room(self) -> int:
        """Return the free bytes where prepared data are kept."""
        folder = prepared.cache_folder()
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def put_data(self, dataset: Mapping[str, Any], piece: Piece) -> None:
        """Write a piece of a dataset's prepared arrays; the last file's name is `meta.json`."""
        # Agents of other commands, or of hosts with the same home folder, may do so, too.
        write(prepared.cached(dataset), piece, writer=f"-{self._folder.name}")

    def put_code(self, piece: Piece) -> None:
        """Write a piece of a file of the user's own code."""
        write(self._folder / "code", piece)

    def begin(self, name: str) -> str:
        """End what is left of an earlier job, and return a new folder for the run called `name`."""
        self.end_job()
        self._sampler = None
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))
        self._run = RunFolder(folder)
        for sub in (files.LOGS, files.RANKS):
            (folder / sub).mkdir()
        (self._folder / "code").mkdir(exist_ok=True)
        return str(folder)

    def put(self, piece: Piece) -> None:
        """Write a piece of a file of the run."""
        self._run.put(piece)

    def changes(self) -> list[Piece]:
        """Return pieces of what the processes have written in the run's folder since the last call."""
        return self._run.changes()

    def free_port(self) -> int:
        """Return a port of this host's address that is free now."""
        with socket.socket() as probe:
            probe.bind((self._address, 0))
            return int(probe.getsockname()[1])

    def spawn(self, name: str, command: list[str], environment: Mapping[str, str], log: str) -> int:
        """Start a process of the run, called `name`, and return its id; its end comes by `ended`."""
        return self._starter.submit(self._spawn, name, command, environment, Path(log)).result()

    def _spawn(self, name: str, command: list[str], environment: Mapping[str, str], log: Path) -> int:
        """Start a process, in the thread that lasts."""
        code = f"{facts.ROOT}{os.pathsep}{self._folder / 'code'}"
        own = {**environment, "PYTHONPATH": code, variables.PARENT: str(os.getpid())}
        child: Process
        if self._mpi is not None and self._mpi.has(environment):
            child = self._mpi.spawn(command, own, log)
        else:
            child = spawn_child(
                command, own, log, [self._alive], inherits=facts.scrubbed(), folder=self._folder / "code"
            )
        self._children[name] = child
        threading.Thread(target=lambda: self._ended.put((name, child.wait())), daemon=True).start()
        return child.pid

    def listen_mpi(self) -> str:
        """Wait for agents of an `mpiexec` from now on; return the address that they must have."""
        folder = Path(tempfile.mkdtemp(prefix="mpi-", dir=self._folder))
        self._mpi = MPIAgents(folder)
        return self._mpi.address

    def accept_mpi(self, count: int) -> int:
        """Wait for `count` agents of `mpiexec`, each of which runs a rank; return how many there are."""
        assert self._mpi is not None, "it listens"
        return self._mpi.accept(count, lambda: True)

    def ended(self, seconds: float) -> list[tuple[str, int]]:
        """Return names and exit statuses of processes that have ended, after `seconds` at most."""
        found: list[tuple[str, int]] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._ended.get(timeout=seconds))
            while True:
                found.append(self._ended.get_nowait())
        return found

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process of the job and its children, if the job hasn't ended."""
        if (child := self._children.get(name)) is not None:
            child.signal_group(signal.Signals(number))

    def stand_in(self, rank: int) -> None:
        """Hold what tells the processes here that a rank of another host lives, until `let_go`."""
        folder = files.rank_folder(self._run.folder, rank)
        folder.mkdir(parents=True, exist_ok=True)
        self._stand_ins[rank] = file = (folder / files.ALIVE).open("w")
        fcntl.flock(file, fcntl.LOCK_EX)

    def let_go(self, rank: int) -> None:
        """Tell the processes here that a rank of another host has ended."""
        if (file := self._stand_ins.pop(rank, None)) is not None:
            file.close()

    def follow(self, interval: float, followed: Mapping[str, Any]) -> None:
        """Sample processes every `interval` seconds from now on, as `Sampler.follow` is told."""
        if self._sampler is None:
            # Its rows go to the parent, who writes those of all hosts.
            self._sampler = Sampler(self._folder / files.TRACE, interval)
            self._sampler.__enter__()
        self._sampler.follow(**followed)

    def samples(self) -> tuple[list[Any], list[Any], list[Any], float]:
        """Return what was sampled since the last call, and what that has taken so far.

        These are rows, helpers' seconds, readings, and CPU seconds of the sampler.
        """
        if self._sampler is None:
            return [], [], [], 0.0
        sampler = self._sampler
        new = _take(sampler.rows), _take(sampler.helper_seconds), _take(sampler.readings)
        return *new, sampler.cpu_seconds

    def end_job(self) -> None:
        """Kill the processes of the job that are left, and free its devices."""
        if self._sampler is not None:
            # What it has sampled last is asked for later.
            self._sampler.stop()
        for rank in list(self._stand_ins):
            self.let_go(rank)
        self._kill()
        self._children.clear()
        self._mpi = None
        self._lease.close()
        if self._run.folder.exists():
            shutil.rmtree(self._run.folder, ignore_errors=True)

    def close(self) -> None:
        """Leave nothing of this agent but its process."""
        self.end_job()
        shutil.rmtree(self._folder, ignore_errors=True)
        reaper.close()

    def _kill(self) -> None:
        """Kill all processes, with their children."""
        for child in list(self._children.values()):
            child.signal_group(signal.SIGKILL)

    def _expire(self, lost_seconds: float) -> None:
        """Wait for the end of the lease; then kill all processes, and this one."""
        while (left := self._heard + lost_seconds - time.monotonic()) > 0:
            time.sleep(min(LEASE_SECONDS, left))
        print(f"{EXPIRED} for {lost_seconds:g} s: this host's processes are killed", flush=True)
        self._kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)


def _take(rows: list[Any]) -> list[Any]:
    """Remove from a list, which another thread may add to meanwhile, what it has, and return that."""
    taken = rows[:]
    del rows[: len(taken)]
    return taken

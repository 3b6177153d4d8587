"""Follow a host of a cluster from the parent: its processes, their files, and whether it still answers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.launch.cluster import clocks
from src.launch.cluster.arrivals import HELD, Arrivals
from src.launch.cluster.clocks import Offset
from src.launch.cluster.engine import Connection, HostLost
from src.launch.cluster.facts import HostFacts
from src.launch.host import Host
from src.launch.process_spec import rank_name
from src.launch.spawn import AwaitedProcess, Spawn
from src.run.status import HOST_LOST
from src.run.variables import PROCESS, RANK, SERVES, STARTED

# The agent answers a question for ends of processes after so long, if there is none.
ASK_SECONDS = 1.0
# How often files are fetched.
FETCH_SECONDS = 0.5


class RemoteProcess(AwaitedProcess):
    """A process on a host of a cluster (a `Process`)."""

    def __init__(self, host: RemoteHost, name: str, pid: int, rank: int) -> None:
        """Follow the process `name`, which has the id `pid` there."""
        super().__init__(name)
        self.pid, self.rank = pid, rank
        self._host = host

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children, if the host is there."""
        with contextlib.suppress(HostLost):
            self._host.call("signal", self._name, int(number))


class RemoteHost(Host):
    """A host of a cluster, with its agent.

    Attributes:
        facts: what the agent has told of the host.
        offset: by how much its clocks are ahead of this host's.
        lost_seconds: how long the agent may be silent.
        peers: all hosts of the job, this one among them.
        records: whether processes there record their own steps, and not a coordinator that they serve.
    """

    def __init__(self, connection: Connection, facts: HostFacts, lost_seconds: float) -> None:
        """Follow the host with this agent, which is lost when it doesn't answer for `lost_seconds`."""
        super().__init__(facts.address, facts.interface or "")
        self.facts = facts
        self.offset = Offset()
        self.peers: Sequence[RemoteHost] = ()
        self.records = False
        self._connection = connection
        self.lost_seconds = lost_seconds
        self._answered = time.monotonic()
        self._processes: dict[str, RemoteProcess] = {}
        self._folder: Path | None = None
        # This is what comes from there while a job goes on.
        self._arrivals: Arrivals | None = None
        self._installing = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name=f"watch {self.address}", daemon=True).start()
        threading.Thread(target=self._keep_fetching, name=f"fetch {self.address}", daemon=True).start()

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Call a method of the agent.

        Raises:
            HostLost: where the host was lost, or doesn't answer within `seconds`, by default `lost_seconds`.
        """
        if self.lost is None:
            try:
                return self._connection.call(method, *arguments, seconds=seconds or self.lost_seconds)
            except HostLost as reason:
                self._lose(str(reason))
        raise HostLost(f"host {self.address} was lost: {self.lost}")

    def folder(self, out: Path) -> Path:
        """Return where the run's directory `out` is on that host."""
        assert self._folder is not None, "a job has begun"
        return self._folder

    def begin_job(self, out: Path) -> None:
        """Make a folder for the run in `out`, whose changes are fetched from now on."""
        self.records = False
        # Clocks drift.
        self.offset = clocks.compare(lambda: self.call("clocks"))
        self._folder = Path(self.call("begin", out.name))
        self._arrivals = Arrivals(out, self.address)

    def spawn_by(self, spawn: Spawn) -> Spawn:
        """Return the function that has the agent start a process, whatever its launcher does here."""
        return self.spawn

    def spawn(self, command: list[str], environment: Mapping[str, str], log: Path) -> RemoteProcess:
        """Have the agent start a process, with a `log` there; raise `HostLost` where the host is lost."""
        name, rank = environment[PROCESS], int(environment[RANK])
        # What lies beside this Python lies beside the one there.
        command = [word.replace(sys.prefix, self.facts.prefix) for word in command]
        environment = {
            key: value.replace(sys.prefix, self.facts.prefix) for key, value in environment.items()
        }
        # What its start took is told by its own clock.
        environment = {**environment, STARTED: repr(float(environment[STARTED]) + self.offset.wall)}
        for other in self.peers:
            if other is not self and name == rank_name(rank):
                # One that was lost needs to be told nothing.
                with contextlib.suppress(HostLost):
                    other.call("stand_in", rank)
        # Before its end can be heard.
        process = self._processes[name] = RemoteProcess(self, name, 0, rank)
        self.records |= SERVES not in environment
        process.pid = self.call("spawn", name, command, environment, str(log))
        return process

    def answered(self, since: float) -> bool:
        """Return whether the host has answered, or was lost, since the moment `since` of `time.monotonic`."""
        return self.lost is not None or self._answered > since

    def describe(self) -> dict[str, Any]:
        """Return what `environment.json` says of the host."""
        return {
            "name": self.facts.name,
            "address": self.address,
            "processors": [self.facts.processor],
            "gpus": list(self.facts.gpus),
            "clock_offset_seconds": self.offset.wall,
            "clock_offset_uncertain_seconds": self.offset.uncertain,
            "lost": self.lost,
        }

    def end_job(self) -> None:
        """Fetch what the processes of the job have left, and end it there."""
        arrivals = self._arrivals
        try:
            # It fails where another host was lost, too, or the disk here is full.
            with contextlib.suppress(HostLost):
                self.fetch()
        finally:
            if arrivals is not None:
                arrivals.end()
            self._arrivals = self._folder = None
            with contextlib.suppress(HostLost):
                self.call("end_job")
        if arrivals is not None:
            for name in arrivals.names:
                clocks.adjust(arrivals.out, name, self.offset)
        self._processes.clear()

    def fetch(self) -> None:
        """Fetch all changes in the run's folder.

        A checkpoint takes its place once all that was recorded before it is here, from every host: else a job
        that goes on from it would lack rows.

        Raises:
            HostLost: where the host, or one whose records a checkpoint waits for, is lost.
        """
        with self._installing:
            checkpoint = self._fetch()
            if checkpoint is None:
                return
            try:
                for other in self.peers:
                    if other is not self and other.records:
                        other.fetch_records()
            except HostLost:
                checkpoint.unlink(missing_ok=True)
                raise
            os.replace(checkpoint, checkpoint.with_name(checkpoint.name.split(HELD)[0].lstrip(".")))

    def fetch_records(self) -> None:
        """Fetch what there is, and keep no checkpoint of it; raise `HostLost` where the host is lost."""
        if (checkpoint := self._fetch()) is not None:
            checkpoint.unlink(missing_ok=True)

    def _fetch(self) -> Path | None:
        """Fetch all changes; return the path where the newest checkpoint is held, if there is another one."""
        arrivals = self._arrivals
        return None if arrivals is None else arrivals.fetch(lambda: self.call("changes"))

    def close(self) -> None:
        """End the agent."""
        self._closed.set()
        if self.lost is None:
            with contextlib.suppress(HostLost):
                self._connection.call("close", seconds=self.lost_seconds)
        self._connection.close()

    def _watch(self) -> None:
        """Ask for ends of processes, until the host is lost or not needed any more."""
        while not self._closed.is_set():
            try:
                ended = self.call("ended", ASK_SECONDS, seconds=ASK_SECONDS + self.lost_seconds)
                asked = time.monotonic()
            except HostLost:
                return
            if ended:
                # What a process has said at its end is needed to judge that.
                self._try_to_fetch()
            for name, code in ended:
                self._end(name, code)
            self._answered = asked

    def _end(self, name: str, code: int) -> None:
        """Take a process for ended, and tell the other hosts."""
        process = self._processes.get(name)
        if process is None or process.poll() is not None:
            return
        # First: who is to blame is decided soon after a first end, and another host may take long to answer.
        process.end(code)
        for other in self.peers:
            if other is not self and name == rank_name(process.rank):
                with contextlib.suppress(HostLost):
                    other.call("let_go", process.rank)

    def _keep_fetching(self) -> None:
        """Fetch changes now and then, so that the run is seen here as it goes."""
        while not self._closed.wait(FETCH_SECONDS):
            self._try_to_fetch()

    def _try_to_fetch(self) -> None:
        """Fetch all changes, if the host is there and the disk isn't full."""
        try:
            with contextlib.suppress(HostLost, OSError):
                self.fetch()
        except Exception as error:
            self._lose(f"its files can't be fetched: {error!r}")

    def _lose(self, reason: str) -> None:
        """Take the host, and all processes there, for lost."""
        if self.lost is None:
            self.lost = reason
        for name in list(self._processes):
            self._end(name, HOST_LOST)

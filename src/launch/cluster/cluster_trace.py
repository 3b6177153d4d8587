"""Gather the traces of a cluster's hosts, on this host's clock (a `Trace`)."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from src.launch.cluster.engine import HostLost
from src.launch.cluster.remote_host import RemoteHost
from src.launch.launched import LaunchedProcess
from src.launch.local.trace import followed
from src.measure.contention import Reading
from src.run.tables import TRACE_FIELDS


class ClusterTrace:
    """A trace of the processes on all hosts of a job."""

    def __init__(self, path: Path, interval: float) -> None:
        """Prepare to have the hosts sample every `interval` seconds; all goes to the CSV file `path`."""
        self.rows: list[dict[str, Any]] = []
        self.helper_seconds: list[tuple[float, float]] = []
        self.readings: list[Reading] = []
        self._path, self._interval = path, interval
        self._hosts: list[RemoteHost] = []
        # CPU seconds of each host's sampler, and of the helpers there.
        self._sampling: dict[RemoteHost, float] = {}
        self._helping: dict[RemoteHost, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def cpu_seconds(self) -> float:
        """Return what the samplers of all hosts have used of a core, of the busiest one."""
        return max(self._sampling.values(), default=0.0)

    def follow_processes(self, processes: Sequence[LaunchedProcess]) -> None:
        """Have each host follow its processes among these, and no others."""
        by_host: dict[RemoteHost, list[LaunchedProcess]] = {}
        for each in processes:
            if isinstance(each.host, RemoteHost):
                by_host.setdefault(each.host, []).append(each)
        self._hosts = list(by_host)
        for host, own in by_host.items():
            with contextlib.suppress(HostLost):
                host.call("follow", self._interval, followed(own))

    def __enter__(self) -> object:
        self._path.write_text(",".join(TRACE_FIELDS) + "\r\n")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        """Gather what the hosts have sampled until the end, and once more then."""
        while not self._stop.wait(self._interval):
            self._gather()
        self._gather()

    def _gather(self) -> None:
        for host in self._hosts:
            with contextlib.suppress(HostLost, OSError):
                self._add(host, *host.call("samples"))

    def _add(
        self, host: RemoteHost, rows: list[Any], helpers: list[Any], readings: list[Any], cpu: float
    ) -> None:
        """Add what a host has sampled, at this host's times, and the CPU seconds of its sampler."""
        self._sampling[host] = cpu
        ahead = host.offset.wall
        for row in rows:
            row["time"] -= ahead
            row["host"] = host.facts.name
        self.rows += rows
        for moment, seconds in helpers:
            self._helping[host] = seconds
            self.helper_seconds.append((moment - ahead, sum(self._helping.values())))
        self.readings += [dataclasses.replace(each, time=each.time - ahead) for each in readings]
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, TRACE_FIELDS)
            writer.writerows(
                {key: "" if value is None else value for key, value in row.items()} for row in rows
            )

"""Trace the hardware of a run's processes on this machine, and say which of them a sampler must follow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from src.launch.host import SWITCH
from src.launch.launched import LaunchedProcess
from src.measure.contention import Reading
from src.measure.sampler import Sampler


class Trace(Protocol):
    """The interface of a trace, which is taken within a `with` block.

    Attributes:
        rows: all samples, with the columns `TRACE_FIELDS`.
        helper_seconds: (time, CPU seconds that all helpers had used until then).
        readings: counters of what the ranks waited for their cores.
    """

    rows: list[dict[str, Any]]
    helper_seconds: list[tuple[float, float]]
    readings: list[Reading]

    @property
    def cpu_seconds(self) -> float:
        """Return what all of that has taken of a core."""

    def follow(self, processes: Sequence[LaunchedProcess]) -> None:
        """Follow these processes of a run, and no others."""

    def __enter__(self) -> object: ...
    def __exit__(self, *_: object) -> None: ...


class LocalTrace:
    """The trace of processes that are all on this machine (a `Trace`)."""

    def __init__(self, path: Path, interval: float) -> None:
        """Prepare to take a sample every `interval` seconds, and write it to the CSV file at `path`."""
        self._sampler = Sampler(path, interval)
        self.rows, self.helper_seconds = self._sampler.rows, self._sampler.helper_seconds
        self.readings = self._sampler.readings

    @property
    def cpu_seconds(self) -> float:
        """Return what the sampler has used."""
        return self._sampler.cpu_seconds

    def follow(self, processes: Sequence[LaunchedProcess]) -> None:
        """Have the sampler follow these processes, and no others."""
        self._sampler.follow(**followed(processes))

    def __enter__(self) -> object:
        return self._sampler.__enter__()

    def __exit__(self, *_: object) -> None:
        self._sampler.__exit__()


def followed(processes: Sequence[LaunchedProcess]) -> dict[str, Any]:
    """Return the arguments with which a sampler, on their machine, follows these processes of a run."""
    training = [each for each in processes if not each.spec.helper]
    hosts = {each.spec.host: each.host for each in processes if each.host.holder is not None}
    switch = [each.process.pid for each in processes if each.spec.name == SWITCH]
    return {
        "ranks": [(each.rank, each.process.pid, device) for each in training for device in each.devices],
        "helpers": [each.process.pid for each in processes if each.spec.helper],
        "others": [
            (each.process.pid, [core for device in each.devices for core in device.cores])
            for each in processes
            if each.spec.helper or not each.devices
        ],
        "networks": {name: str(host.holder) for name, host in hosts.items()},
        # Processes without a network of their own are on the one host that there is.
        "host_of": {each.rank: each.spec.host for each in training if each.spec.host in hosts},
        "switch": next(iter(switch), None),
    }

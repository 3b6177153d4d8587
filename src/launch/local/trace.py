"""Trace the hardware of a run's processes on this machine, and say which of them a sampler must follow."""

from __future__ import annotations

from collections.abc import Sequence
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

    def follow_processes(self, processes: Sequence[LaunchedProcess]) -> None:
        """Follow these processes of a run, and no others."""

    def __enter__(self) -> object: ...
    def __exit__(self, *_: object) -> None: ...


class LocalTrace(Sampler):
    """The trace of processes that are all on this machine (a `Trace`)."""

    def follow_processes(self, processes: Sequence[LaunchedProcess]) -> None:
        """Follow these processes, and no others."""
        self.follow(**followed(processes))


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

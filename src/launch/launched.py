"""Describe a process that the parent has started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from src.launch.host import Host, LocalHost
from src.launch.process_spec import ProcessSpec
from src.launch.spawn import Process
from src.machine.devices import Device


@dataclass
class LaunchedProcess:
    """A started process of a run, or of its launcher.

    Attributes:
        rank: the rank that the process is, or whose records it writes.
        devices: the devices that it holds.
        process: the process itself.
        log: the file with its output.
        spec: its specification, with all environment variables.
        host: where it is.
        start_again: starts it as it was started, once it has ended.
    """

    rank: int
    devices: list[Device]
    process: Process
    log: Path
    spec: ProcessSpec
    host: Host = field(default_factory=LocalHost)
    start_again: Callable[[], Process] | None = None

    @property
    def title(self) -> str:
        """Return the name of the process for messages, as `rank 1` or `coordinator`."""
        return self.spec.name.replace("-", " ")

"""Say how one training went, as the parent saw it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

from src.launch.launched import LaunchedProcess
from src.launch.local.trace import Trace
from src.launch.supervise.processes import Outcome
from src.run.status import HOST_LOST, UNANNOUNCED, Status


@dataclass
class JobResult:
    """How one training went, as seen by the parent.

    Attributes:
        trace: what was sampled of the processes.
        outcome: how the processes ended.
        processes: the processes that were started last.
        environment: the contents of `environment.json`, as far as the parent knows them.
        interrupted: whether the user has ended the training.
        restarts: number of restarts, of a process or of the whole job.
    """

    trace: Trace
    outcome: Outcome = field(default_factory=lambda: Outcome(code=1))
    processes: list[LaunchedProcess] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    restarts: int = 0

    @property
    def status(self) -> Status:
        """Return `OK`, `OUT_OF_MEMORY` or `FAILED`; an interrupted training counts as failed."""
        if self.outcome.code == Status.OUT_OF_MEMORY.process:
            return Status.OUT_OF_MEMORY
        return Status.FAILED if self.outcome.code else Status.OK

    def blamed(self) -> LaunchedProcess | None:
        """Return the process that failed first, `None` if none did."""
        return None if self.outcome.failed is None else self.processes[self.outcome.failed]

    def describe_failure(self) -> str:
        """Return a sentence on how the process that failed first ended; there must be one."""
        blamed, code = self.blamed(), self.outcome.code
        assert blamed is not None
        if code == HOST_LOST:
            return f"host {blamed.host.address} was lost with {blamed.title}: {blamed.host.lost}"
        if code < 0:
            return f"{blamed.title} was killed by {_signal_name(-code)}"
        if code >= UNANNOUNCED:
            return (
                f"{blamed.title} ended before its training did, with exit status "
                f"{code - UNANNOUNCED}, by the model's code or a library"
            )
        return f"{blamed.title} failed with exit status {code}"


def _signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals between the first and the last one have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

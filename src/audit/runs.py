"""Run the trainings of an audit, each in fresh processes, and read what their ranks wrote."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
import time
from pathlib import Path

from src.audit import cells, records
from src.audit.records import Record
from src.config import Config
from src.config.mistakes import CommandError
from src.launch.launcher import launcher_of
from src.launch.supervise.failure import mistake_of, report_failure
from src.launch.supervise.supervisor import Supervisor
from src.machine.device_locks import Lease
from src.run import files, leases
from src.run.directory import RunDirectory
from src.run.status import Status
from src.tracking.live_tracker import ParentTracker


class RunFailed(CommandError):
    """The error where a training of the audit failed; its text is one sentence."""

    exit_status = 1


class Runner:
    """Runs trainings, one after the other, in folders of their own; the same one is run once.

    Attributes:
        seconds: what each took, by its title, in the order in which they were run.
    """

    def __init__(self, folder: Path, lease: Lease) -> None:
        """Run in folders below `folder`, on the devices of `lease`."""
        self.seconds: dict[str, float] = {}
        self._folder = folder
        self._lease = lease
        self._known: dict[str, Record] = {}
        self._last, self._count = "", 0

    def run(self, config: Config, title: str, *, again: bool = False) -> Record:
        """Train as configured, and return what the ranks did.

        Args:
            config: the configuration.
            title: names the run for those who wait.
            again: whether it is trained though it was before.

        Raises:
            RunFailed: where the training doesn't come to its end.
        """
        key = json.dumps(dataclasses.asdict(config), sort_keys=True, default=str)
        if again:
            return self._run(config, title)
        if key not in self._known:
            self._known[key] = self._run(config, title)
        return self._known[key]

    def stopped(self, config: Config, title: str) -> str:
        """Train half of the steps, and return the path of the checkpoint."""
        self._run(cells.stopped(config), title)
        path = files.checkpoint_in(self._folder / self._last)
        if path is None:
            raise RunFailed(f"{title}: wrote no checkpoint")
        return str(path)

    def _run(self, config: Config, title: str) -> Record:
        begun = time.time()
        # A terminal shows how far the run is, where other outputs have one line of it.
        shown = sys.stderr if sys.stderr.isatty() else io.StringIO()
        if not sys.stderr.isatty():
            print(f"  {title}", end="", flush=True)
        self._count += 1
        self._last = f"{self._count:03d}"
        config = dataclasses.replace(config, out=str(self._folder / self._last))
        launcher_of(config).prepare(config)
        directory = RunDirectory.claim(config)
        devices = self._lease.of(leases.request_of(config))
        supervisor = Supervisor(config, directory.work, ParentTracker(config), devices)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(shown):
            job = supervisor.run(started=begun, sweep=False)
        if job.interrupted:
            print(flush=True)
            raise KeyboardInterrupt
        self.seconds[title] = time.time() - begun
        begin = f"  {title}" if sys.stderr.isatty() else ""
        print(f"{begin}: {self.seconds[title]:.0f} s", flush=True)
        if job.status is not Status.OK:
            mistake = mistake_of(job, directory.work)
            if mistake is None and (blamed := job.blamed()) is not None:
                text = blamed.log.read_text(errors="replace") if blamed.log.exists() else ""
                lines = [line for line in text.splitlines() if line.strip()]
                mistake = f"{job.describe_failure()}: {lines[-1].strip()}" if lines else None
            if mistake is None:
                report_failure(job, directory.work)
            raise RunFailed(f"{title}: {mistake or 'failed'}")
        return records.read(directory.work, shares_batch=config.supports.shares_batch)

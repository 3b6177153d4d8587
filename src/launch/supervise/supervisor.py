"""Supervise one training from the parent: start its processes, watch them, restart them, and end them all."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from src.config import CannotRunHere, Config, slurm
from src.data import prepared
from src.launch.cluster.engine import HostLost
from src.launch.launched import LaunchedProcess, describe_devices, describe_hosts
from src.launch.local.isolation import isolation
from src.launch.local.warm_start import ForkedProcess
from src.launch.supervise import exchange_benchmark, inspection, processes
from src.launch.supervise.choose_hosts import trace_of
from src.launch.supervise.job_result import JobResult
from src.machine.devices import Device
from src.machine.memory import MemoryKills
from src.measure import environment
from src.run import files, variables
from src.run.progress import LiveProgress
from src.run.status import FINAL, HOST_LOST, Status, confirmed
from src.run.tables import read_table
from src.tracking.live_tracker import ParentTracker

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Supervisor:
    """Runs one training to its end.

    When a dispensable process dies, it is restarted. When another process dies, all processes are restarted
    and resume at the last checkpoint, or begin anew without one. There are at most `strategy.max_restarts`
    restarts of both kinds together. A job that would fail in the same way again isn't restarted.
    """

    def __init__(
        self, config: Config, out: Path, tracker: ParentTracker, own_devices: Sequence[Device]
    ) -> None:
        """Prepare to train.

        Args:
            config: the run's configuration.
            out: the run's directory, which has its `config.yaml`.
            tracker: tracks the training in MLflow.
            own_devices: the devices of the workers on this machine, in their order.
        """
        self._own_devices = own_devices
        self._start = partial(processes.start, config, out, own_devices=own_devices)
        self._trace = trace_of(config, out)
        # Restarts that Slurm has decided on don't count against the strategy's.
        self.result = JobResult(self._trace, restarts=slurm.restarts())
        self._config = config
        self._out = out
        self._tracker = tracker
        self._memory_kills = MemoryKills()
        self._max_restarts: int = config.strategy["max_restarts"] + self.result.restarts
        # A job of Slurm's that is started again goes on at its checkpoint.
        self._checkpoint = files.checkpoint_in(out) if slurm.restarts() else None
        # The version of the checkpoint at which the job was last started.
        self._resumed = _version(self._checkpoint)
        self._started = self._watched = 0.0

    def run(self, *, started: float, sweep: bool) -> JobResult:
        """Train and return how that went; on return no process is left.

        Args:
            started: when the run began, in seconds since 1970.
            sweep: whether the run's MLflow run belongs under that of a sweep.
        """
        result, self._started = self.result, started
        isolated = contextlib.ExitStack()
        try:
            # In a thread, which imports MLflow while the ranks import their framework.
            self._tracker.start(self._out, started=started, sweep=sweep)
            begun = time.time()
            if self._config.hardware.probe:
                exchange_benchmark.measure_before(self._config, self._out, self._own_devices)
                # Nobody's start-up is what that took.
                started += time.time() - begun
                begun = time.time()
            result.environment["isolation"] = isolated.enter_context(isolation(self._config))
            result.processes = self._start(started=started, resume=self._checkpoint)
            training = [each.rank for each in result.processes if each.devices and not each.spec.helper]
            self._tracker.follow(self._out, training)
            ranks = [each for each in result.processes if each.devices]
            forked = all(isinstance(each.process, ForkedProcess) for each in ranks)
            result.environment |= environment.describe(self._config) | {
                "inspection": inspection.found(self._config),
                "start_method": "forkserver" if forked else "spawn",
                "started": started,
                "devices": describe_devices(result.processes),
                **describe_hosts(result.processes),
                "seconds": {"parent": begun - started},
            }
            self._watched = time.time()
            self._watch()
            # The last start counts: hosts and devices may be others than at the first.
            result.environment |= {
                "devices": describe_devices(result.processes),
                **describe_hosts(result.processes),
                # CPU seconds, in how many seconds.
                "sampler": {
                    "cpu_seconds": self._trace.cpu_seconds,
                    "seconds": time.time() - self._watched,
                },
            }
        except KeyboardInterrupt:
            result.interrupted = True
        finally:
            # A second Ctrl-C must not interrupt the end of the processes.
            with contextlib.ExitStack() as ending:
                for number in ENDING_SIGNALS:
                    ending.callback(signal.signal, number, signal.signal(number, signal.SIG_IGN))
                ending.callback(isolated.close)
                ending.callback(files.remove_unfinished, self._out)
                processes.stop(result.processes)
        return result

    def _watch(self) -> None:
        """Wait for the end of the training, and restart the job as often as allowed."""
        config, result = self._config, self.result
        deadline = time.monotonic() + config.wall_clock_minutes * 60
        samples = prepared.samples(config.dataset)
        with self._trace, LiveProgress(config, self._out, samples) as progress:
            while True:
                self._trace.follow_processes(self.result.processes)
                result.outcome = processes.wait(
                    result.processes,
                    limit=deadline - time.monotonic(),
                    tick=progress.tick,
                    revive=self._revive,
                    ready=self._is_ready,
                    status=self._status,
                )
                if not result.outcome.code or result.outcome.timed_out:
                    return
                if result.outcome.code in FINAL or not self._restart_all():
                    return

    def _revive(self, launched: LaunchedProcess) -> bool:
        """Restart a process that has died; return whether there was a restart left, and a host."""
        if launched.host.lost is not None:
            # Where others are left they go on; else that is what ends the job.
            lost = f"  host {launched.host.address} was lost with {launched.title}: {launched.host.lost}"
            print(lost, file=sys.stderr, flush=True)
            return False
        if self.result.restarts == self._max_restarts:
            return False
        self.result.restarts += 1
        self._print_restart(f"{launched.title} has died and is started again")
        try:
            assert launched.start_again is not None
            launched.process = launched.start_again()
        except HostLost as error:
            print(f"  {error}", file=sys.stderr, flush=True)
            return False
        self._trace.follow_processes(self.result.processes)
        return True

    def _restart_all(self, *, started: bool = True) -> bool:
        """Restart the job from its last checkpoint; return whether a restart was left and made sense.

        `started` says that the job had been started before it failed.
        """
        result, resume = self.result, files.checkpoint_in(self._out)
        if result.restarts == self._max_restarts or (started and self._would_repeat(resume)):
            return False
        result.restarts += 1
        self._resumed = _version(resume)
        result.environment["seconds"] = {"lost": time.time() - self._started, "parent": 0.0}
        where = "the last checkpoint" if resume else "the first step, for there is no checkpoint"
        self._print_restart(f"{result.describe_failure()}; all are started again, from {where}")
        try:
            result.processes = self._start(started=time.time(), resume=resume)
        except HostLost as error:
            print(f"  {error}", file=sys.stderr, flush=True)
            return self._restart_all(started=False)
        except CannotRunHere as error:
            # The hosts that are left don't do.
            print(f"  {error}", file=sys.stderr, flush=True)
            return False
        return True

    def _would_repeat(self, resume: Path | None) -> bool:
        """Return whether the job would fail again where it has failed, if it went on from `resume`.

        So does a job that fails before its first step. An error of a process's own comes again at the same
        step, unless it was another's doing: the job goes on only if it has got further than when it was last
        started, by a newer checkpoint. A process that was killed by a signal, or lost with its host, needs
        none.
        """
        if self.result.outcome.code > 0 and self.result.outcome.code != HOST_LOST:
            return _version(resume) == self._resumed
        return not (resume or read_table(files.rank_folder(self._out, 0) / files.STEPS))

    def _print_restart(self, text: str) -> None:
        """Print `text` and the number of restarts to standard error."""
        count = self.result.restarts
        print(f"  {text} ({count} of {self._max_restarts} restarts)", file=sys.stderr, flush=True)

    def _is_ready(self, launched: LaunchedProcess) -> bool:
        """Return whether the rank of a process has ever been ready, as its steps may tell first."""
        folder = files.rank_folder(self._out, launched.rank)
        return (folder / files.READY).exists() or bool(read_table(folder / files.STEPS))

    def _status(self, launched: LaunchedProcess, code: int) -> int:
        """Return the exit status that counts of a process that has ended with `code`.

        It is `OUT_OF_MEMORY` where the kernel has killed the process for want of memory, and another than
        `code` where the process didn't announce that.
        """
        if code == -signal.SIGKILL and self._memory_kills.has_another():
            return Status.OUT_OF_MEMORY.process
        # What the launcher has started itself announces nothing.
        if variables.PROCESS not in launched.spec.environment:
            return code
        return confirmed(files.end_path(self._out, launched.spec.name), code)


def _version(checkpoint: Path | None) -> int:
    """Return a number that changes whenever a checkpoint is written; 0 where there is none."""
    return 0 if checkpoint is None else checkpoint.stat().st_mtime_ns

"""Run one training from its directory to its result: the parent's part of one cell of a command."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from src.config import Config, slurm
from src.launch.supervise.failure import mistake_of, report_failure
from src.launch.supervise.supervisor import Supervisor
from src.machine.devices import Device
from src.measure import arithmetic, environment
from src.measure.merge import merge
from src.measure.summary import describe, differing, disturbance, profiled, summarize
from src.run.directory import RunDirectory
from src.run.status import Status
from src.tracking.completion import send_unsent
from src.tracking.live_tracker import ParentTracker

# Statuses of runs that are measured again if they were disturbed.
REPEATED = (Status.OK, Status.TIME_LIMIT)


class Interrupted(KeyboardInterrupt):
    """A request to end the command: Ctrl-C or SIGTERM."""


def _recorded(directory: RunDirectory) -> str:
    """Return the line that says where the records of an interrupted run are."""
    return f"interrupted; what was recorded is in {directory.work}"


def train(config: Config, devices: list[Device], *, started: float, sweep: bool) -> Status:
    """Train with one configuration in fresh processes, write the results, and return the run's status.

    A run that others have disturbed is measured again, `hardware.repeat_disturbed` times at most; the last
    one counts, whatever its speed.

    Args:
        config: the checked configuration.
        devices: the devices of its workers.
        started: when the run began, in seconds since 1970.
        sweep: whether the run is a cell of a sweep.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, once all records so far are merged.
    """
    attempts: list[dict[str, Any]] = []
    for left in reversed(range(config.attempts)):
        status = _train(config, devices, attempts, left, started=started, sweep=sweep)
        if status is not None:
            return status
        started = time.time()
    raise AssertionError("the last attempt is never repeated")


def _train(
    config: Config,
    devices: list[Device],
    attempts: list[dict[str, Any]],
    left: int,
    *,
    started: float,
    sweep: bool,
) -> Status | None:
    """Train once, add what disturbed the run to `attempts`, and return its status.

    The status is `None` for a run that was disturbed, if it may be repeated `left` times.
    """
    again = RunDirectory.reclaim(config) if slurm.restarts() and not attempts else None
    directory = again or RunDirectory.claim(config)
    try:
        print(f"{Path(config.out).name}: {describe(config)}", flush=True)
        tracker = ParentTracker(config)
        try:
            job = Supervisor(config, directory.work, tracker, devices).run(started=started, sweep=sweep)
        except BaseException:
            tracker.close("FAILED", directory.work)
            raise
    except KeyboardInterrupt:
        print(_recorded(directory), file=sys.stderr)
        raise
    mistake = mistake_of(job, directory.work)
    metrics: dict[str, Any] = {}
    ended = time.time()
    discarded = False
    try:
        metrics = merge(
            config,
            directory.work,
            status=job.status,
            total_seconds=time.time() - started,
            trace=job.trace.rows,
            helper_seconds=job.trace.helper_seconds,
            readings=job.trace.readings,
            environment=job.environment,
            restarts=job.restarts,
            run_id=tracker.run_id,
            # Slurm may have ended the job for another one, and start it again.
            keep=job.interrupted and slurm.JOB in os.environ,
        )
        attempts.append({key: metrics[key] for key in arithmetic.DISTURBANCES})
        discarded = bool(left and metrics["status"] in REPEATED and arithmetic.disturbed(metrics))
    finally:
        failed = metrics.get("status", Status.FAILED) == Status.FAILED
        merged = time.time()
        tracker.log_results(directory.work, metrics)
        seconds = {"merge": merged - ended, "tracking": time.time() - merged}
        outcome = "KILLED" if job.interrupted or discarded else "FAILED" if failed else "FINISHED"
        try:
            environment.complete(directory.work, attempts, seconds)
        finally:
            tracked = tracker.close(outcome, directory.work, discarded=discarded)
    if discarded:
        print(f"{disturbance(metrics)}; it is measured again, {left} time(s) at most", flush=True)
        return None
    if not failed:
        directory.commit()
    if mistake is not None:
        print(f"error: {mistake}", file=sys.stderr)
        if not config.tracking["study"]:
            shutil.rmtree(directory.work)
        return Status.MISTAKE
    if tracked and tracker.uri is not None and (sent := send_unsent(tracker.uri)):
        print(f"  sent {sent} earlier run(s) that the tracking server had missed")
    if job.interrupted:
        print(_recorded(directory), file=sys.stderr)
        raise Interrupted
    if failed:
        report_failure(job, directory.work)
    else:
        lines = [summarize(metrics), *differing(config, job.environment), *profiled(directory.final)]
        lines.append(f"  {directory.final}")
        print(*lines, sep="\n", flush=True)
    return Status(metrics["status"])

"""Check every cell of a command line, then run each in fresh processes: `python -m src.train`.

This process is the parent. It imports Hydra, but neither torch nor tensorflow, so that a mistyped word is
answered at once, and no run inherits another's memory or threads.
"""

from __future__ import annotations

import errno
import json
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from src.config import Config, ConfigError, command_line, compose
from src.data import available
from src.data.errors import DataError, mount_point
from src.launch.launcher import launcher_of
from src.launch.supervisor import JobResult, Supervisor
from src.machine import process
from src.measure.merge import merge
from src.run import exit_status, files
from src.run.directory import RunDirectory, check_out, status_of
from src.run.tables import write_text
from src.tracking import unsent
from src.tracking.parent import ParentTracker, close_sweep

EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130
# Status of a run whose configuration turned out to be wrong once a rank had built the model.
MISTAKE = "mistake"
# When this process was started, before any import, in seconds since 1970.
COMMAND_GIVEN = process.start_time()
# The statuses of the cells that this process has run, in order.
STATUSES: list[str | None] = []


class Interrupted(KeyboardInterrupt):
    """A request to end the command: Ctrl-C or SIGTERM."""


def main() -> int:
    """Run the command line; return 0, 1 after a failure, 2 for a user's mistake, 130 after Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        line, cells = check(sys.argv[1:])
    except ConfigError as error:
        return _complain(f"error: {error}", EXIT_MISTAKE)
    except DataError as error:
        return _complain(f"error: {error}", 1)
    except KeyboardInterrupt:
        return _complain("interrupted", EXIT_INTERRUPTED)
    STATUSES.clear()
    try:
        if cells:
            launcher_of(cells[0]).prepare(cells[0])
        if cells and not line.multirun:
            _run_cell(cells[0], sweep=False)
        else:
            conf = str(compose.CONF.absolute())
            hydra.main(version_base="1.3", config_path=conf, config_name="config")(_run_hydra_job)()
    except KeyboardInterrupt:
        close_sweep("KILLED")
        return _complain("interrupted; every rank was ended", EXIT_INTERRUPTED)
    if line.informational:
        return 0
    # A launcher plugin of Hydra may have run the cells in other processes.
    statuses = STATUSES or [status_of(Path(cell.out)) for cell in cells]
    crashed = any(status in (None, "failed", MISTAKE) for status in statuses)
    close_sweep("FAILED" if crashed else "FINISHED")
    # In a study the other cells go on, and the aggregate stage reports the failure.
    if not crashed or all(cell.tracking["study"] for cell in cells):
        return 0
    return EXIT_MISTAKE if MISTAKE in statuses else 1


def check(arguments: list[str]) -> tuple[command_line.CommandLine, list[Config]]:
    """Compose and check all cells of a command line; fetch and prepare datasets that are missing.

    The flags in `sys.argv` are moved to the front, where Hydra expects them.

    Returns:
        The parsed command line, and the cells to run: none where only information is asked for (`--help`).

    Raises:
        ConfigError: for the first mistake in any cell.
        DataError: for data that can't be fetched or read.
    """
    arguments = command_line.flags_first(arguments)
    line = command_line.parse(arguments)
    sys.argv[1:] = arguments
    # The cells that --help or --cfg is about are checked as well, and nothing is run.
    cells = compose.cells(line)
    for cell in cells:
        launcher_of(cell).check(cell)
    if line.informational:
        return line, []
    for cell in cells:
        check_out(cell)
    for dataset in {cell.dataset["name"]: cell.dataset for cell in cells}.values():
        available.ensure(dataset)
    for cell in cells:
        _check_samples(cell)
    return line, cells


def _check_samples(config: Config) -> None:
    """Raise `ConfigError` where a step needs more samples than the dataset has."""
    samples = available.samples(config.dataset)
    if config.global_batch > samples:
        largest = samples * config.batch // config.global_batch
        raise ConfigError(
            f"batch={config.batch}: one step takes {config.global_batch} samples and "
            f"{config.dataset['name']} has {samples} to train on; choose batch <= {largest}"
        )


def _run_hydra_job(cfg: DictConfig) -> None:
    """Run one cell of a sweep; Hydra's launcher calls this with the composed cell."""
    words = list(HydraConfig.get().overrides.task)
    groups = [word for word in words if word.split("=")[0] in compose.GROUPS]
    _run_cell(compose.finish(cfg, words, compose.group_defaults(groups)), sweep=True)


def _run_cell(config: Config, *, sweep: bool) -> None:
    """Run one cell and add its status to `STATUSES`; a cell that meets a full disk is `failed`."""
    started = time.time() if STATUSES else COMMAND_GIVEN
    try:
        STATUSES.append(run(config, started=started, sweep=sweep))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _complain(_disk_full(Path(config.out)), 1)
        STATUSES.append("failed")


def run(config: Config, *, started: float, sweep: bool) -> str:
    """Train with one configuration in fresh processes, write the results, and return the run's status.

    Args:
        config: the checked configuration.
        started: when the run began, in seconds since 1970.
        sweep: whether the run is a cell of a sweep.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, once all records so far are merged.
    """
    directory = RunDirectory.claim(config)
    print(f"{Path(config.out).name}: {_describe(config)}", flush=True)
    tracker = ParentTracker(config)
    job = Supervisor(config, directory.work, tracker).run(started=started, sweep=sweep)
    mistake = _mistake_of(job, directory.work)
    metrics: dict[str, Any] = {}
    ended = time.time()
    try:
        metrics = merge(
            config,
            directory.work,
            status=job.status,
            total_seconds=time.time() - started,
            trace=job.trace,
            helper_seconds=job.helper_seconds,
            environment=job.environment,
            restarts=job.restarts,
            run_id=tracker.run_id,
        )
    finally:
        failed = metrics.get("status", "failed") == "failed"
        merged = time.time()
        tracker.log_results(directory.work, metrics, job.trace)
        _add_seconds(directory.work, merge=merged - ended, tracking=time.time() - merged)
        outcome = "KILLED" if job.interrupted else "FAILED" if failed else "FINISHED"
        tracked = tracker.close(outcome, directory.work)
    if not failed:
        directory.commit()
    if mistake is not None:
        print(f"error: {mistake}", file=sys.stderr)
        if not config.tracking["study"]:
            shutil.rmtree(directory.work)
        return MISTAKE
    _follow_up(tracker, tracked, directory.work if failed else directory.final)
    if job.interrupted:
        print(f"interrupted; what was recorded is in {directory.work}", file=sys.stderr)
        raise Interrupted
    if failed:
        _report_failure(job, directory.work)
    else:
        print(_summary(metrics), f"  {directory.final}", sep="\n", flush=True)
    return metrics["status"]


def _add_seconds(out: Path, **parts: float) -> None:
    """Add the seconds that parts of a run took to `seconds` in environment.json, in the folder `out`."""
    path = out / files.ENVIRONMENT
    if path.exists():
        environment = json.loads(path.read_text())
        earlier = environment["seconds"]
        environment["seconds"] |= {part: earlier.get(part, 0.0) + seconds for part, seconds in parts.items()}
        write_text(path, json.dumps(environment, indent=1))


def _mistake_of(job: JobResult, out: Path) -> str | None:
    """Return the sentence in which a rank describes the user's mistake, `None` if there is none."""
    # A run with a mistake is removed, but not one that completed steps before a restart.
    if job.outcome.code != exit_status.MISTAKE or job.restarts:
        return None
    blamed = job.blamed()
    assert blamed is not None
    return (files.rank_folder(out, blamed.rank) / files.MISTAKE).read_text()


def _follow_up(tracker: ParentTracker, tracked: bool, folder: Path) -> None:
    """Remember a run that the tracking server has missed; if it missed none, send the remembered ones."""
    if tracker.uri is None:
        return
    if not tracked:
        unsent.remember(folder, tracker.uri)
    elif sent := unsent.send_unsent(tracker.uri):
        print(f"  sent {sent} earlier run(s) that the tracking server had missed")


def _describe(config: Config) -> str:
    """Return a sentence on what a run trains, for the terminal."""
    kind = config.hardware["device"]
    batch = f"batch {config.global_batch}" + (
        f" = {config.workers} x {config.batch}" if config.scaling == "weak" else ""
    )
    return (
        f"{config.strategy['name']} trains {config.model['name']} on {config.dataset['name']}, {batch}, "
        f"{config.workers} {kind} worker(s), {config.epochs} epoch(s) or {config.max_minutes:g} min"
    )


def _summary(metrics: dict[str, Any]) -> str:
    """Return a line with a run's main results, for the terminal."""

    def show(key: str, format_spec: str) -> str:
        return "-" if metrics[key] is None else format(metrics[key], format_spec)

    return (
        f"  {metrics['status']}: accuracy {show('accuracy', '.4f')}, loss {show('loss', '.4f')}, "
        f"{show('samples_per_second', ',.0f')} samples/s, trained {show('train_seconds', '.1f')} s, "
        f"started in {show('startup_seconds', '.1f')} s, total {show('total_seconds', '.1f')} s"
    )


def _report_failure(job: JobResult, out: Path) -> None:
    """Print why a training failed: its reason, and the last lines of the blamed process's log."""
    blamed = job.blamed()
    if job.outcome.code == exit_status.DISK_FULL:
        print(_disk_full(out), file=sys.stderr)
    if job.outcome.timed_out or blamed is None:
        limit = "its wall-clock limit (2 x max_minutes + hardware.grace_minutes)"
        print(
            f"error: the run took longer than {limit}; the ranks' logs are in {out / files.LOGS}",
            file=sys.stderr,
        )
        return
    lines = [line for line in blamed.log.read_text(errors="replace").splitlines() if line.strip()]
    print(f"error: {job.describe_failure()}; its log is {blamed.log}", file=sys.stderr)
    for text in lines[-8:]:
        print(f"  | {text}", file=sys.stderr)


def _disk_full(path: Path) -> str:
    """Return the message for a full disk, on which the run's directory `path` is."""
    mount = mount_point(path)
    free = shutil.disk_usage(mount).free
    return (
        f"error: the file system at {mount} is full ({free:,} bytes free); what was recorded before is in "
        f"{path}, and the run can be repeated once there is room"
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `Interrupted`, as a signal handler."""
    raise Interrupted


def _complain(text: str, code: int) -> int:
    """Print `text` to standard error; return the exit status `code`."""
    print(text, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

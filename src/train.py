"""`python -m src.train`: checks every cell of a command line, then runs each in fresh processes.

This is the parent: Hydra only. It imports neither torch nor tensorflow, so that a typing error is
answered at once and no run inherits another's memory or threads.
"""

from __future__ import annotations

import errno
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
import psutil
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from src import attempt as attempts
from src import command_line, compose, resend, rundir, tracking
from src.attempt import Attempt
from src.config import Config, ConfigError
from src.data import available
from src.data.errors import DataError, mount_point
from src.launch import ranks as launch
from src.measure.merge import merge
from src.rundir import RunDirectory

EXIT_MISTAKE = 2
# Outcome of a run whose configuration turned out to be wrong once a rank had built the model.
MISTAKE = "mistake"
EXIT_INTERRUPTED = 130
# When the command was given, before anything was imported.
BEGUN = psutil.Process().create_time()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or a polite request to end, while a run was on."""


def main() -> int:
    """Returns the exit status: 0, 1 after a crash, 2 for a mistake, 130 after Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        arguments = command_line.flags_first(sys.argv[1:])
        line = command_line.parse(arguments)
        sys.argv[1:] = arguments
        # What --help or --cfg is asked about is checked as well, and nothing more.
        checked = compose.cells(line)
        cells = [] if line.informational else checked
        for cell in cells:
            rundir.check(cell)
        for dataset in {cell.dataset["name"]: cell.dataset for cell in cells}.values():
            available.ensure(dataset)
        for cell in cells:
            _check_samples(cell)
    except ConfigError as error:
        return _say(f"error: {error}", EXIT_MISTAKE)
    except DataError as error:
        return _say(f"error: {error}", 1)
    except KeyboardInterrupt:
        return _say("interrupted", EXIT_INTERRUPTED)
    OUTCOMES.clear()
    try:
        if cells and not line.multirun:
            _attend(cells[0], sweep=False)
        else:
            hydra.main(version_base="1.3", config_path=str(compose.CONF.absolute()), config_name="config")(
                _job
            )()
    except KeyboardInterrupt:
        tracking.close_sweep("KILLED")
        return _say("interrupted; every rank was ended", EXIT_INTERRUPTED)
    if line.informational:
        return 0
    statuses = OUTCOMES or [rundir.status(Path(cell.out)) for cell in cells]
    crashed = any(status in (None, "failed", MISTAKE) for status in statuses)
    tracking.close_sweep("FAILED" if crashed else "FINISHED")
    # In a study the other cells go on, and the aggregate stage reports the failure.
    if not crashed or all(cell.tracking["study"] for cell in cells):
        return 0
    return EXIT_MISTAKE if MISTAKE in statuses else 1


OUTCOMES: list[str] = []


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


def _check_samples(config: Config) -> None:
    samples = available.samples(config.dataset)
    if config.global_batch > samples:
        most = samples * config.batch // config.global_batch
        raise ConfigError(
            f"batch={config.batch}: one step takes {config.global_batch} samples and "
            f"{config.dataset['name']} has {samples} to train on; choose batch <= {most}"
        )


def _job(cfg: DictConfig) -> None:
    """One cell of a sweep, as Hydra's launcher calls it."""
    words = list(HydraConfig.get().overrides.task)
    groups = [word for word in words if word.split("=")[0] in compose.GROUPS]
    _attend(compose.finish(cfg, words, compose.group_defaults(groups)), sweep=True)


def _attend(config: Config, *, sweep: bool) -> None:
    """Runs one cell and keeps its status; a full disk is one, too."""
    started = BEGUN if not OUTCOMES else time.time()
    try:
        OUTCOMES.append(run(config, started=started, sweep=sweep))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _say(_disk_full(Path(config.out)), 1)
        OUTCOMES.append("failed")


def run(config: Config, *, started: float, sweep: bool) -> str:
    """Trains one configuration in fresh processes and leaves its results; returns the status."""
    place = RunDirectory.claim(config)
    print(f"{Path(config.out).name}: {_describe(config)}", flush=True)
    tracker = tracking.ParentTracker(config)
    attempt = attempts.make(config, place.work, tracker, started=started, sweep=sweep)
    mistake = None
    # What was trained before a restart isn't thrown away.
    if attempt.outcome.code == launch.EXIT_MISTAKE and not attempt.restarts:
        blamed = attempt.blamed()
        assert blamed is not None
        mistake = (place.work / "ranks" / str(blamed.number) / "mistake.txt").read_text()
    metrics: dict[str, Any] = {}
    try:
        metrics = merge(
            config,
            place.work,
            status=attempt.status,
            total_seconds=time.time() - started,
            trace=attempt.trace,
            helper_seconds=attempt.helper_seconds,
            environment=attempt.environment,
            restarts=attempt.restarts,
            run_id=tracker.run_id,
        )
    finally:
        failed = metrics.get("status", "failed") == "failed"
        ended = "KILLED" if attempt.interrupted else "FAILED" if failed else "FINISHED"
        tracked = tracker.close(ended, place.work, metrics, attempt.trace)
    if not failed:
        place.commit()
    if mistake is not None:
        print(f"error: {mistake}", file=sys.stderr)
        if not config.tracking["study"]:
            shutil.rmtree(place.work)
        return MISTAKE
    _follow_up(tracker, tracked, place.work if failed else place.final)
    if attempt.interrupted:
        print(f"interrupted; what was recorded is in {place.work}", file=sys.stderr)
        raise Interrupted
    if failed:
        _report_failure(attempt, place)
    else:
        print(_summary(metrics), f"  {place.final}", sep="\n", flush=True)
    return metrics["status"]


def _follow_up(tracker: tracking.ParentTracker, tracked: bool, folder: Path) -> None:
    """Remembers a run that the tracking server missed; sends such runs when it is there."""
    if tracker.uri is None:
        return
    if not tracked:
        resend.remember(folder, tracker.uri)
    elif sent := resend.send_waiting(tracker.uri):
        print(f"  sent {sent} earlier run(s) that the tracking server had missed")


def _describe(config: Config) -> str:
    kind = config.hardware["device"]
    batch = f"batch {config.global_batch}" + (
        f" = {config.workers} x {config.batch}" if config.scaling == "weak" else ""
    )
    return (
        f"{config.strategy['name']} trains {config.model['name']} on {config.dataset['name']}, {batch}, "
        f"{config.workers} {kind} worker(s), {config.epochs} epoch(s) or {config.max_minutes:g} min"
    )


def _summary(metrics: dict[str, Any]) -> str:
    def show(key: str, form: str) -> str:
        return "-" if metrics[key] is None else format(metrics[key], form)

    return (
        f"  {metrics['status']}: accuracy {show('accuracy', '.4f')}, loss {show('loss', '.4f')}, "
        f"{show('samples_per_second', ',.0f')} samples/s, trained {show('train_seconds', '.1f')} s, "
        f"started in {show('startup_seconds', '.1f')} s, total {show('total_seconds', '.1f')} s"
    )


def _report_failure(attempt: Attempt, place: RunDirectory) -> None:
    outcome, rank = attempt.outcome, attempt.blamed()
    if outcome.code == launch.EXIT_DISK_FULL:
        print(_disk_full(place.work), file=sys.stderr)
    if outcome.timed_out or rank is None:
        said = (
            "error: the run took longer than its wall-clock limit (2 x max_minutes + hardware.grace_minutes)"
        )
        print(f"{said}; the ranks' logs are in {place.work / 'logs'}", file=sys.stderr)
        return
    lines = [line for line in rank.log.read_text(errors="replace").splitlines() if line.strip()]
    print(f"error: {attempt.how()}; its log is {rank.log}", file=sys.stderr)
    for text in lines[-8:]:
        print(f"  | {text}", file=sys.stderr)


def _disk_full(path: Path) -> str:
    mount = mount_point(path)
    free = shutil.disk_usage(mount).free
    return (
        f"error: the file system at {mount} is full ({free:,} bytes free); what was recorded before is in "
        f"{path}, and the run can be repeated once there is room"
    )


if __name__ == "__main__":
    sys.exit(main())

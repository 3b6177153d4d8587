"""Have a job's processes do something else in the place of a training: measure exchanges, rehearse steps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from src.config import Config
from src.config.mistakes import CommandError, ConfigError
from src.launch.local.isolation import isolation
from src.launch.supervise import processes
from src.machine.devices import Device
from src.run import files
from src.run.progress import phase

# Without a terminal the work is announced after so many seconds.
SILENT_SECONDS = 5.0


class NotMeasured(CommandError):
    """The error where a process failed; its text has which one, and the last line of its log."""


class TookTooLong(NotMeasured):
    """The error where the processes took longer than a run may."""


def run(
    config: Config, folder: Path, devices: Sequence[Device], changes: Mapping[str, Any], doing: str, what: str
) -> None:
    """Run the processes of a job to their end, and leave their records in a folder.

    Args:
        config: the run's configuration.
        folder: a new folder for the records.
        devices: those of the workers on this machine.
        changes: what is to be done: keys of the strategy, as `entry`, with other values.
        doing: what that is, for the person who waits.
        what: what is measured, as `the exchanges`, for errors.

    Raises:
        ConfigError: for a mistake that a process found.
        NotMeasured: where a process fails.
    """
    strategy = {**config.strategy, **changes, "max_restarts": 0}
    changed = dataclasses.replace(config, strategy=strategy, out=str(folder))
    for each in (files.RANKS, files.LOGS):
        (folder / each).mkdir(parents=True)
    (folder / files.CONFIG).write_text(yaml.safe_dump(dataclasses.asdict(changed), sort_keys=False))
    with phase(doing, SILENT_SECONDS), isolation(changed):
        started = processes.start(changed, folder, started=time.time(), own_devices=devices)
        try:
            limit = 60 * config.hardware.grace_minutes
            outcome = processes.wait(started, limit=limit, tick=lambda: None)
        finally:
            processes.stop(started)
    if outcome.timed_out:
        raise TookTooLong(f"hardware.grace_minutes={config.hardware.grace_minutes}: {what} took longer")
    if outcome.code:
        for path in files.of_every_rank(folder, files.MISTAKE).values():
            raise ConfigError(path.read_text().strip())
        blamed = started[outcome.failed or 0]
        said = blamed.log.read_text(errors="replace").strip().splitlines() if blamed.log.exists() else []
        last = f": {said[-1]}" if said else ""
        raise NotMeasured(f"{what} couldn't be measured: {blamed.title} ended{last}")

"""Have a job's processes measure their backend's exchanges, in the place of a training."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from src.config import Config, ConfigError
from src.config.mistakes import CommandError
from src.launch.local.isolation import isolation
from src.launch.supervise import processes
from src.machine.devices import Device
from src.run import files
from src.run.progress import phase

Row = dict[str, Any]
# Without a terminal the measurement is announced after so many seconds.
SILENT_SECONDS = 5.0


class NotMeasured(CommandError):
    """The error where a process failed; its text has which one, and the last line of its log."""


def check(config: Config) -> None:
    """Raise `ConfigError` where the exchanges of a strategy are to be measured that has none."""
    if config.hardware.probe and profile_of(config) is None:
        raise ConfigError(
            f"hardware.probe=true: no exchange of strategy {config.strategy['name']} can be measured by "
            "itself; leave it away"
        )


def profile_of(config: Config) -> str | None:
    """Return the module that measures the exchanges of a strategy, `None` where none does."""
    module: str | None = (config.strategy.get("exchange") or {}).get("profile")
    return module


def measure(config: Config, folder: Path, devices: Sequence[Device]) -> list[Row]:
    """Measure the exchanges of a run's strategy between its hosts.

    The links are measured before that; `network.json` in `folder` then has both.

    Args:
        config: the run's configuration.
        folder: a new folder for the processes' records.
        devices: those of the workers on this machine.

    Raises:
        NotMeasured: where a process fails.
    """
    module = profile_of(config)
    # A strategy without processes that serve has none to measure with.
    served = {"serve": f"{module}.serve"} if "serve" in config.strategy else {}
    strategy = {**config.strategy, "entry": f"{module}.train", **served, "max_restarts": 0}
    measuring = dataclasses.replace(config, strategy=strategy, out=str(folder))
    for each in (files.RANKS, files.LOGS):
        (folder / each).mkdir(parents=True)
    (folder / files.CONFIG).write_text(yaml.safe_dump(dataclasses.asdict(measuring), sort_keys=False))
    with phase(f"measuring what {config.strategy['name']} exchanges", SILENT_SECONDS), isolation(measuring):
        started = processes.start(measuring, folder, started=time.time(), own_devices=devices)
        try:
            limit = 60 * config.hardware.grace_minutes
            outcome = processes.wait(started, limit=limit, tick=lambda: None)
        finally:
            processes.stop(started)
    if outcome.timed_out:
        raise NotMeasured(
            f"hardware.grace_minutes={config.hardware.grace_minutes}: the exchanges took longer; with a "
            "smaller hardware.probe_seconds the longest are left out"
        )
    if outcome.code:
        blamed = started[outcome.failed or 0]
        said = blamed.log.read_text(errors="replace").strip().splitlines() if blamed.log.exists() else []
        last = f": {said[-1]}" if said else ""
        raise NotMeasured(f"the exchanges couldn't be measured: {blamed.title} ended{last}")
    rows: dict[tuple[str, ...], Row] = {}
    for path in files.of_every_rank(folder, files.EXCHANGE).values():
        for row in json.loads(path.read_text()):
            # What several processes have measured is known by the first one.
            rows.setdefault((row["operation"], *row["between"]), row)
    return list(rows.values())


def measure_before(config: Config, out: Path, devices: Sequence[Device]) -> None:
    """Measure the exchanges of a run for its `network.json`; raise `NotMeasured` where a process fails."""
    folder = out / files.PROBE
    try:
        rows = measure(config, folder, devices)
        path = folder / files.NETWORK
        network = json.loads(path.read_text()) if path.exists() else {}
        (out / files.NETWORK).write_text(json.dumps({**network, "exchange": rows}, indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)

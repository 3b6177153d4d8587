"""Have a job's processes measure their backend's exchanges, in the place of a training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from src.config import Config, ConfigError
from src.launch.supervise import substitute
from src.launch.supervise.substitute import NotMeasured, TookTooLong
from src.machine.devices import Device
from src.run import files

Row = dict[str, Any]


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
    doing = f"measuring what {config.strategy['name']} exchanges"
    changes = {"entry": f"{module}.train", **served}
    try:
        substitute.run(config, folder, devices, changes, doing, "the exchanges")
    except TookTooLong as error:
        raise NotMeasured(
            f"{error}; with a smaller hardware.probe_seconds the longest are left out"
        ) from error
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

"""Find what an earlier command has finished of a sweep: cells that are taken as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from src.config import Config
from src.machine.devices import processor
from src.measure.environment import driver, gpu_names
from src.measure.software import software_of
from src.run import files
from src.run.directory import holds_run_of, status_of
from src.run.status import MEASURED


def is_finished(config: Config) -> bool:
    """Return whether `config.out` holds what the run would measure, so that it needn't be measured again.

    That is a run with figures that hold, of the same configuration and data, watched and tracked in the same
    way. With `overwrite`, and of a run that resumes from another, nothing is taken.
    """
    return not config.overwrite and config.resume is None and holds_run_of(config) and figures_hold(config)


def figures_hold(config: Config) -> bool:
    """Return whether `config.out` holds figures by this software, of a machine as this one."""
    out = Path(config.out)
    if status_of(out) not in MEASURED or not (seen := _environment(out)):
        return False
    gpu = config.hardware.device == "gpu"
    names, there = (gpu_names(), seen.get("gpus")) if gpu else (processor(), _processor(seen))
    same_machine = names == there and driver() == seen.get("driver")
    return same_machine and seen.get("software") == software_of(config)


def _processor(seen: dict[str, Any]) -> Any:
    return (seen.get("processors") or {}).get("model")


def _environment(out: Path) -> dict[str, Any]:
    """Read a run's environment; return an empty one where it can't be read."""
    try:
        found = json.loads((out / files.ENVIRONMENT).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

"""Find what an earlier command has finished of a sweep: cells that are taken as they are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from src.config import Config
from src.config.huggingface import is_at_hub
from src.machine.devices import processor
from src.measure.arithmetic import disturbed
from src.measure.environment import driver, gpu_names
from src.measure.software import software_of
from src.run import files
from src.run.directory import holds_run_of, status_of
from src.run.status import MEASURED
from src.run.tables import read_mapping


def is_finished(config: Config) -> bool:
    """Return whether `config.out` holds what the run would measure, so that it needn't be measured again.

    That is a run with figures, of the same configuration, data and weights to begin with, watched and tracked
    in the same way, by the same software, on such a machine. With `overwrite`, and of a run that resumes from
    another, nothing is taken; nor is what would have been measured again, for others have disturbed it.

    The machines of a cluster aren't compared: they are known once a run has them.
    """
    out = Path(config.out)
    if config.overwrite or config.resume is not None or status_of(out) not in MEASURED:
        return False
    if not (holds_run_of(config) and by_this_software(config)):
        return False
    seen, metrics = read_mapping(out / files.ENVIRONMENT), read_mapping(out / files.METRICS)
    if disturbed(metrics) and len(seen.get("attempts") or ()) < config.attempts:
        return False
    named = [config.model.get(key) for key in ("pretrained", "config")]
    given = [Path(each).expanduser() for each in named if each is not None and not is_at_hub(each)]
    if any(_changed(path) > _changed(out / files.METRICS) for path in given):
        return False
    return config.on_cluster or config.hardware.scheduler is not None or _same_machine(config, seen)


def by_this_software(config: Config) -> bool:
    """Return whether `config.out` holds a run by this software, whatever has come of it.

    A library that is installed as it is edited has no version by which it is known.
    """
    seen = read_mapping(Path(config.out) / files.ENVIRONMENT).get("software")
    return seen is not None and seen == software_of(config) and not any(map(_is_edited, seen["libraries"]))


def _same_machine(config: Config, seen: Mapping[str, Any]) -> bool:
    gpu = config.hardware.device == "gpu"
    names = gpu_names() if gpu else processor()
    there = seen.get("gpus") if gpu else (seen.get("processors") or {}).get("model")
    return names == there and driver() == seen.get("driver")


def _is_edited(library: str) -> bool:
    """Return whether a library is installed as `pip install -e` does."""
    try:
        text = metadata.distribution(library).read_text("direct_url.json") or "{}"
        return bool((json.loads(text).get("dir_info") or {}).get("editable"))
    except (metadata.PackageNotFoundError, ValueError):
        return False


def _changed(path: Path) -> float:
    """Return when a file, or the last one in a folder, was written, in seconds since 1970.

    It is infinity for one that isn't there.
    """
    try:
        return max(each.stat().st_mtime for each in (path, *(path.iterdir() if path.is_dir() else ())))
    except OSError:
        return math.inf

"""Compose a run's configuration from the YAML files of conf/ without Hydra, which GPU images lack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from src.config import CONF, Config
from src.config.checks import resolve
from src.config.dataset_content import code_of
from src.config.run_config import DEFAULT_TASK

# Keys of conf/config.yaml that are Hydra's.
HYDRAS = ("defaults", "hydra")


def compose(out: Path, dataset: Mapping[str, Any], choices: Mapping[str, str], **keys: Any) -> Config:
    """Compose and check a configuration.

    Args:
        out: the run's directory.
        dataset: what a file of conf/dataset/ holds.
        choices: the file of conf/GROUP/ by group, of `strategy`, `model` and `hardware`.
        **keys: other values; a mapping has some keys of a group, or of `optimizer` or `tracking`.

    Raises:
        ConfigError: for a combination that can't run.
    """
    raw: dict[str, Any] = {key: value for key, value in _read("config").items() if key not in HYDRAS}
    # conf/config.yaml has what all files of a group share, if anything.
    raw |= {
        group: _merged(raw.get(group, {}), _read(f"{group}/{choice}")) for group, choice in choices.items()
    } | {
        "dataset": {**dataset, "code": code_of(dataset)},
        "task": _read(f"task/{dataset.get('task', DEFAULT_TASK)}"),
    }
    for key, value in keys.items():
        raw[key] = {**raw[key], **value} if isinstance(value, Mapping) else value
    return resolve(raw, str(out))


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice with what all of its group share; what options may hold is known by both."""
    allowed = {**(common.get("allowed") or {}), **(own.get("allowed") or {})}
    return {**common, **own, **({"allowed": allowed} if allowed else {})}


def _read(name: str) -> dict[str, Any]:
    composed: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return composed

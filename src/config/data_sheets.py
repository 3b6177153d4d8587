"""Tell the data sheets of `conf/hardware/`, which describe devices and networks, from hardware that runs.

A file with `data_sheet` describes a device, one with `network_sheet` a network. Predictions rest on them
(`src/predict/sheets.py`); no run can be had on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import yaml

from src.config.mistakes import ConfigError
from src.config.run_config import CONF

# The key of a file that describes a device, and that of one that describes a network.
DEVICE, NETWORK = KEYS = ("data_sheet", "network_sheet")


def figures(name: str, key: str) -> dict[str, Any] | None:
    """Return the figures of the data sheet `name` under `key`, `None` where there is no such sheet."""
    return _content(name).get(key) if name.isidentifier() and name in _names() else None


def names(*keys: str) -> list[str]:
    """Return the names of the data sheets that have one of `keys`, by default of all."""
    files = sorted((CONF / "hardware").glob("*.yaml"))
    return [path.stem for path in files if any(key in _content(path.stem) for key in keys or KEYS)]


def check_absent(row: Iterable[str]) -> None:
    """Raise `ConfigError` where the overrides `row` choose hardware that is a data sheet."""
    for word in row:
        group, _, choice = word.partition("=")
        name = choice.strip("'\"")
        if group == "hardware" and any(figures(name, key) is not None for key in KEYS):
            raise ConfigError(
                f"hardware={name}: is a data sheet, which `python -m src.predict` reads; nothing runs on it"
            )


@cache
def _names() -> frozenset[str]:
    return frozenset(path.stem for path in (CONF / "hardware").glob("*.yaml"))


@cache
def _content(name: str) -> dict[str, Any]:
    content = yaml.safe_load((CONF / "hardware" / f"{name}.yaml").read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}

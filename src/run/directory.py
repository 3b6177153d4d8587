"""Claim a run's directory: refuse one that holds something else, replace an older run at the end."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from src.config import Config, ConfigError
from src.run import files
from src.run.tables import write_text

# Keys that say where results go, and not what is computed.
NOT_COMPARED = ("out", "overwrite", "tracking")


def status_of(out: Path) -> str | None:
    """Return the `status` that a run directory's metrics.json holds, `None` without a readable one."""
    try:
        return json.loads((out / files.METRICS).read_text())["status"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_out(config: Config) -> None:
    """Raise `ConfigError` unless the run may be written to `config.out`.

    It may not replace the current directory, the checkpoint that it resumes from, foreign files, or a run of
    another configuration without `overwrite`.
    """
    out = Path(config.out)
    if out.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise ConfigError(f"out={config.out}: would replace the folder that you stand in; choose another")
    if config.resume is not None and out.resolve() in Path(config.resume).resolve().parents:
        raise ConfigError(
            f"resume={config.resume}: lies in out={config.out}, which is replaced; choose another out"
        )
    if out.is_file():
        raise ConfigError(f"out={config.out}: is a file; choose a directory")
    if not out.exists() or not any(out.iterdir()):
        return
    there = _configuration(out)
    if there is None:
        raise ConfigError(f"out={config.out}: holds files that are not a run's; choose another")
    differences = _differences(there, dataclasses.asdict(config))
    if differences and not config.overwrite:
        raise ConfigError(
            f"out={config.out}: holds a run of another configuration ({differences[0]}); "
            "choose another, or overwrite=true to replace it"
        )


def _configuration(out: Path) -> dict[str, Any] | None:
    """Read the `config.yaml` in `out`; `None` unless a run wrote it."""
    try:
        there = yaml.safe_load((out / files.CONFIG).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    # Keys may have been added since that run, but another project's config.yaml lacks most of these.
    known = {"strategy", "model", "dataset", "hardware", "workers", "batch", "out"}
    return there if isinstance(there, dict) and known <= there.keys() else None


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    # YAML has no tuples, so that those written there and these compare equal.
    here = yaml.safe_load(yaml.safe_dump(here))
    there, here = (
        {**keys, "hardware": {k: v for k, v in keys["hardware"].items() if k != "wait_minutes"}}
        for keys in (there, here)
    )
    keys = [key for key in {**there, **here} if key not in NOT_COMPARED and there.get(key) != here.get(key)]
    return [
        f"{key} differs"
        if isinstance(here.get(key), dict)
        else f"{key}: {there.get(key)} there, {here.get(key)} here"
        for key in keys
    ]


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory, which is written as `work` and becomes `final` by `commit`.

    The two differ when `final` holds a complete run, which an interrupted new one must not replace.
    """

    final: Path
    work: Path

    @classmethod
    def claim(cls, config: Config) -> RunDirectory:
        """Make a new directory with the run's `config.yaml`, and folders for logs and records."""
        final = Path(config.out)
        complete = status_of(final) not in (None, "failed")
        work = final.with_name(final.name + ".partial") if complete else final
        if work.exists():
            shutil.rmtree(work)
        work.mkdir(parents=True)
        # This file comes first: by it a later run knows that the directory may be replaced.
        write_text(work / files.CONFIG, yaml.safe_dump(dataclasses.asdict(config), sort_keys=False))
        (work / files.LOGS).mkdir()
        (work / files.RANKS).mkdir()
        return cls(final, work)

    def commit(self) -> None:
        """Put the new run in the place of the older complete one, if there is one."""
        if self.work == self.final:
            return
        old = self.final.with_name(self.final.name + ".replaced")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(self.final, old)
        os.replace(self.work, self.final)
        shutil.rmtree(old)

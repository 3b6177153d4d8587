"""A run's own directory: refused when it holds something else, replaced atomically when it is complete."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from src.config import Config, ConfigError

# Keys that say where a run goes and not what it computes.
NOT_COMPARED = ("out", "overwrite", "tracking")


def status(folder: Path) -> str | None:
    """The `status` that a run directory's metrics.json holds; `None` without a readable one."""
    try:
        return json.loads((folder / "metrics.json").read_text())["status"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check(config: Config) -> None:
    """Raises `ConfigError` when `out` holds foreign files, or another configuration's run unasked."""
    folder = Path(config.out)
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise ConfigError(f"out={config.out}: would replace the folder that you stand in; choose another")
    if config.resume is not None and folder.resolve() in Path(config.resume).resolve().parents:
        raise ConfigError(
            f"resume={config.resume}: lies in out={config.out}, which is replaced; choose another out"
        )
    if folder.is_file():
        raise ConfigError(f"out={config.out}: is a file; choose a directory")
    if not folder.exists() or not any(folder.iterdir()):
        return
    there = _configuration(folder)
    if there is None:
        raise ConfigError(f"out={config.out}: holds files that are not a run's; choose another")
    differences = _differences(there, dataclasses.asdict(config))
    if differences and not config.overwrite:
        raise ConfigError(
            f"out={config.out}: holds a run of another configuration ({differences[0]}); "
            "choose another, or overwrite=true to replace it"
        )


def _configuration(folder: Path) -> dict[str, Any] | None:
    """What the folder's config.yaml holds; `None` unless a run wrote it."""
    try:
        there = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    # Keys may have been added since; another project's config.yaml has few of them.
    known = {"strategy", "model", "dataset", "hardware", "workers", "batch", "out"}
    return there if isinstance(there, dict) and known <= there.keys() else None


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    # Through YAML and back, so that tuples and lists compare equal.
    here = yaml.safe_load(yaml.safe_dump(here))
    keys = [key for key in {**there, **here} if key not in NOT_COMPARED and there.get(key) != here.get(key)]
    return [
        f"{key} differs"
        if isinstance(here.get(key), dict)
        else f"{key}: {there.get(key)} there, {here.get(key)} here"
        for key in keys
    ]


@dataclass(frozen=True)
class RunDirectory:
    """`work` is written to; it becomes `final` by `commit` (they differ when `final` is complete)."""

    final: Path
    work: Path

    @classmethod
    def claim(cls, config: Config) -> RunDirectory:
        """Makes an empty directory with the run's `config.yaml`."""
        final = Path(config.out)
        complete = status(final) not in (None, "failed")
        work = final.with_name(final.name + ".partial") if complete else final
        if work.exists():
            shutil.rmtree(work)
        work.mkdir(parents=True)
        # First of all: it tells a later run that the rest may be replaced.
        write(work / "config.yaml", yaml.safe_dump(dataclasses.asdict(config), sort_keys=False))
        (work / "logs").mkdir()
        (work / "ranks").mkdir()
        return cls(final, work)

    def commit(self) -> None:
        """Puts the new run in the place of the old one."""
        if self.work == self.final:
            return
        old = self.final.with_name(self.final.name + ".replaced")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(self.final, old)
        os.replace(self.work, self.final)
        shutil.rmtree(old)


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    with whole(path) as temporary:
        temporary.write_text(text)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file to write in the place of `path`, which it takes when the block is left without an error."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

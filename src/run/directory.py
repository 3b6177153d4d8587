"""Claim a run's directory: refuse one that holds something else, replace an older run at the end."""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from src.config import Config, ConfigError
from src.config.keys import GROUPS, Changes, key_of
from src.config.schema import flatten
from src.machine.folders import obstacle, swap_directories
from src.run import files
from src.run.status import Status
from src.run.tables import read_mapping, write_text

# What follows the name of a run's directory while the run is written that will replace it, and the name of
# the older run while it is replaced.
PARTIAL, REPLACED = ".partial", ".replaced"
# What describes a choice and changes nothing of a run; an import path does.
NO_MATTER = tuple(
    f"{group}.{key}"
    for group in GROUPS
    for key in ("allowed", "supports", "page", "licence", "registration", "sources", "draws")
)


def status_of(out: Path) -> Status | None:
    """Return the status that a run directory's metrics.json holds, `None` without a readable one."""
    try:
        return Status(str(read_mapping(out / files.METRICS).get("status")))
    except ValueError:
        return None


def check_out(config: Config) -> None:
    """Raise `ConfigError` unless the run may be written to `config.out`.

    The directory must be writable. The run may not replace the current directory, the checkpoint that it
    resumes from, foreign files, or a run of another configuration without `overwrite`.
    """
    out = Path(config.out)
    if reason := obstacle(out):
        raise ConfigError(f"out={config.out}: {reason}")
    if out.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise ConfigError(f"out={config.out}: would replace the folder that you stand in; choose another")
    if config.resume is not None and out.resolve() in Path(config.resume).resolve().parents:
        raise ConfigError(
            f"resume={config.resume}: lies in out={config.out}, which is replaced; choose another out"
        )
    if os.path.ismount(out):
        raise ConfigError(
            f"out={config.out}: is a mount point, which can't be replaced; choose a folder in it"
        )
    if not out.exists():
        return
    if reason := obstacle(out.parent):
        raise ConfigError(f"out={config.out}: {out.parent} {reason}")
    if not any(out.iterdir()):
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


def holds_run_of(config: Config) -> bool:
    """Return whether `config.out` holds a run of this configuration, watched and tracked as this one is."""
    there = _configuration(Path(config.out))
    return there is not None and not any(
        (key_of(key).changes is not Changes.PLACE or key == "tracking.backend")
        and not key.startswith(NO_MATTER)
        for key in _differing(there, dataclasses.asdict(config))
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
    """Say in words what makes two configurations different runs; nothing where none does."""
    return [
        f"{key}: {one} there, {other} here"
        for key, (one, other) in _differing(there, here).items()
        if key_of(key).distinguishes
    ]


def _differing(there: dict[str, Any], here: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys in which two configurations differ, with both values."""
    # YAML has no tuples, so that those written there and these compare equal.
    known, mine = flatten(there), flatten(yaml.safe_load(yaml.safe_dump(here)))
    both = {key: (known.get(key), mine.get(key)) for key in {**known, **mine}}
    return {key: (one, other) for key, (one, other) in both.items() if one != other}


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory, which is written as `work` and becomes `final` by `commit`.

    The two differ when `final` holds a complete run, which an interrupted new one must not replace. The
    directory must be reserved (`src.run.directory_lock`).
    """

    final: Path
    work: Path

    @classmethod
    def claim(cls, config: Config) -> RunDirectory:
        """Make a new directory with the run's `config.yaml`, and folders for logs and records."""
        final = target_of(Path(config.out))
        work = _beside(final, PARTIAL) if _is_complete(final) else final
        _remove_run(work)
        try:
            work.mkdir(parents=True)
            # This file comes first: by it a later run knows that the directory may be replaced.
            write_text(work / files.CONFIG, yaml.safe_dump(dataclasses.asdict(config), sort_keys=False))
            (work / files.LOGS).mkdir()
            (work / files.RANKS).mkdir()
        except KeyboardInterrupt:
            shutil.rmtree(work, ignore_errors=True)
            raise
        return cls(final, work)

    @classmethod
    def reclaim(cls, config: Config) -> RunDirectory | None:
        """Return the directory of a run that was interrupted, to go on with its records; `None` without."""
        final = target_of(Path(config.out))
        work = _beside(final, PARTIAL) if _is_complete(final) else final
        there = _configuration(work)
        if there is None or _differences(there, dataclasses.asdict(config)):
            return None
        return cls(final, work) if (work / files.RANKS).is_dir() else None

    def commit(self) -> None:
        """Put the new run in the place of the older complete one, if there is one.

        Whenever this process is killed, `final` is one of the two; on a file system that can't exchange two
        directories, the next command finds the older one and puts it back (`recover`).
        """
        if self.work == self.final:
            return
        old = _beside(self.final, REPLACED)
        _remove_run(old)
        if swap_directories(self.work, self.final):
            _remove_run(self.work)
            return
        os.replace(self.final, old)
        os.replace(self.work, self.final)
        _remove_run(old)


def target_of(out: Path) -> Path:
    """Return `out`, or where it leads to as a symbolic link, even if nothing is there."""
    return Path(os.path.realpath(out)) if out.is_symlink() else out


def recover(out: Path) -> None:
    """Put a run back that a command was replacing when it was killed, and check what lies beside `out`.

    Raises:
        ConfigError: if `out` can't be replaced, or something that isn't a run's has the name of a directory
            that replacing it needs.
    """
    final = target_of(out)
    if os.path.ismount(final):
        raise ConfigError(f"out={out}: is where a file system is mounted; choose a directory in it")
    for name in (PARTIAL, REPLACED):
        path = _beside(final, name)
        if path.is_symlink() or path.is_file() or _holds_foreign_files(path):
            raise ConfigError(f"out={out}: {path} is in the way, and not a run's; move it, or choose another")
    if not final.exists() and _is_complete(_beside(final, REPLACED)):
        os.replace(_beside(final, REPLACED), final)


def _beside(final: Path, name: str) -> Path:
    return final.with_name(final.name + name)


def _is_complete(folder: Path) -> bool:
    return status_of(folder) not in (None, Status.FAILED)


def _holds_foreign_files(folder: Path) -> bool:
    """Return whether there is a directory with files that no run has written."""
    return folder.exists() and any(folder.iterdir()) and _configuration(folder) is None


def _remove_run(folder: Path) -> None:
    """Remove a run's directory, if it is there.

    Its `config.yaml` goes last: without that, what is left after a kill would be taken for somebody's files.
    """
    if not folder.exists():
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != files.CONFIG:
            path.unlink()
    shutil.rmtree(folder)

"""Reserve the directories of a command's cells, so that no two commands write to the same one at once.

A directory is reserved by flock(2) on a file beside it, `.<name>.lock`: the directory itself is replaced as a
whole, and whoever shares its file system, from another host or as another user, must see the lock. The kernel
frees the lock with the process that holds it, which otherwise removes the file. Children don't inherit it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from src.config import Config, ConfigError
from src.config.slurm import JOB
from src.machine import file_locks
from src.machine.folders import FULL
from src.run.directory import check_out, recover


@dataclass
class Reservation:
    """The directories that this process has reserved, each until `release`, `close` or the process's end."""

    _files: dict[Path, int] = field(default_factory=dict)
    # Folders that were made for the files of locks, the innermost first.
    _made: list[Path] = field(default_factory=list)

    def add(self, out: Path) -> bool:
        """Reserve one more directory; return whether it wasn't reserved by anyone.

        Raises:
            OSError: if there can't be a file beside it.
        """
        path = _lock_path(out)
        missing = [each for each in (path.parent, *path.parents) if not each.exists()]
        self._made = [*(each for each in missing if each not in self._made), *self._made]
        file = file_locks.lock(path, wait=False)
        if file is not None:
            self._files[path] = file
        return file is not None

    def holds(self, out: Path) -> bool:
        """Return whether a directory is reserved here."""
        return _lock_path(out) in self._files

    def release(self, out: Path) -> None:
        """Let others have one directory."""
        self._unlock(_lock_path(out))

    def close(self) -> None:
        """Let others have all directories; folders that were made for locks alone are removed."""
        for path in list(self._files):
            self._unlock(path)
        for folder in self._made:
            # It holds a run by now, or another command's lock.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _unlock(self, path: Path) -> None:
        if path in self._files:
            file_locks.release(path, self._files.pop(path))


def reserve(cells: Sequence[Config]) -> Reservation:
    """Check the directories of all cells of a command, and reserve them.

    Raises:
        ConfigError: where a cell may not be written to its directory, or another command writes there, or to
            the directory whose checkpoint a cell resumes.
        OSError: on a full disk.
    """
    for cell in cells:
        _refuse_what_is_written(cell)
        # Before a file is made, even that of a lock.
        check_out(cell)
    reservation = Reservation()
    try:
        for cell in cells:
            out = Path(cell.out)
            try:
                is_free = reservation.add(out)
            except OSError as error:
                if error.errno in FULL:
                    raise
                raise ConfigError(f"out={cell.out}: can't be written ({error.strerror})") from error
            # Whoever has submitted a job holds the directory for it.
            if not is_free and JOB not in os.environ:
                raise ConfigError(_taken("out", cell.out, out))
            recover(out)
            # Another command may have come to its end here meanwhile.
            check_out(cell)
    except BaseException:
        reservation.close()
        raise
    return reservation


def _refuse_what_is_written(config: Config) -> None:
    """Raise `ConfigError` where another command writes to the run's directory, or to that it resumes from."""
    resumed = None if config.resume is None else Path(config.resume).parent
    own = None if JOB in os.environ else Path(config.out)
    for key, value, folder in (("out", config.out, own), ("resume", config.resume, resumed)):
        if folder is not None and _is_reserved(folder):
            raise ConfigError(_taken(key, value, folder))


def _is_reserved(out: Path) -> bool:
    """Return whether another process has reserved a directory; no file is made."""
    try:
        file = os.open(_lock_path(out), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return True
    file_locks.unlock(file)
    return False


def _taken(key: str, value: object, out: Path) -> str:
    by = " and ".join(file_locks.holders(_lock_path(out))) or "another command"
    return f"{key}={value}: is being written by {by}; wait for its end, or choose another"


def _lock_path(out: Path) -> Path:
    """Return the file of a directory's lock: one for all the paths that lead to the directory."""
    target = Path(os.path.realpath(out))
    return target.parent / f".{target.name}.lock"

"""Define the error of data that can't be had: one sentence for the user, about a full disk, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from src.config.mistakes import CommandError, ConfigError
from src.machine.folders import FULL


class DataError(CommandError):
    """Data that can't be had or can't be used; its text is one sentence for the user."""


class DataMistake(DataError):
    """A mistake in what the user has typed about data."""

    exit_status = ConfigError.exit_status


@contextmanager
def clear_disk_errors(folder: Path) -> Iterator[None]:
    """Turn the errors of a disk under `folder` into a DataError that names it."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DataError(
                f"the file system {mount_point(folder)} is full: {folder} can't be written"
            ) from error
        raise DataError(f"{error.filename or folder} can't be used: {error.strerror or error}") from error


def mount_point(path: Path) -> Path:
    """Return the mount point of the file system that `path` is on, or would be on once it exists."""
    path = path.resolve()
    while not os.path.ismount(path):
        path = path.parent
    return path

"""Unpack archives safely."""

from __future__ import annotations

import shutil
from pathlib import Path

from src.data.errors import DataError


def unpack(archive: Path, target: Path, *, most_bytes: int, most_files: int) -> None:
    """Unpack a zip or tar archive into the new folder `target`.

    Raises:
        DataError: for an archive that can't be unpacked, or has more files or bytes than it may.
    """
    try:
        shutil.unpack_archive(archive, target, filter="data")
    except (shutil.ReadError, ValueError) as error:
        raise DataError(f"{archive} can't be unpacked: {error}") from error
    files = [path for path in target.rglob("*") if path.is_file()]
    if len(files) > most_files or sum(path.stat().st_size for path in files) > most_bytes:
        raise DataError(f"{archive} has more than {most_files} files or {most_bytes} bytes")

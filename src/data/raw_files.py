"""Verify, decompress and place the files of datasets."""

from __future__ import annotations

import gzip
import hashlib
import os
import secrets
import shutil
import zlib
from pathlib import Path
from typing import Any

from src.data.downloads import CHUNK, Refused
from src.data.errors import FULL


def holds(path: Path, checksum: str | None) -> bool:
    """Return whether `path` is a file whose bytes have this checksum; `None` is that of any."""
    return path.is_file() and (checksum is None or _sum(path, checksum) == checksum)


def _sum(path: Path, like: str) -> str:
    """Return the checksum of a file, of the kind of another one: `md5:...`, or a sha256."""
    kind, prefix = ("md5", "md5:") if like.startswith("md5:") else ("sha256", "")
    with path.open("rb") as file:
        return prefix + hashlib.file_digest(file, kind).hexdigest()


def wrong_sum(raw: Path, checksum: str | None) -> str | None:
    """Return that a file hasn't got a checksum, or `None` where it has."""
    if checksum is None or (found := _sum(raw, checksum)) == checksum:
        return None
    kind = "md5" if checksum.startswith("md5:") else "sha256"
    found, expected = (each.removeprefix("md5:")[:12] for each in (found, checksum))
    return f"its bytes have {kind} {found}…, expected {expected}…"


def raw_file(stored: Path, file: str, work: Path, *own: Path) -> Path:
    """Return the raw bytes of a file that a source stores, as a file that may be moved away.

    It is in `work`, or the stored one itself where that lies in `work` or in a folder of `own`.
    """
    raw = work / "raw"
    try:
        if stored.suffix == ".gz" and not file.endswith(".gz"):
            with gzip.open(stored) as source, raw.open("wb") as target:
                shutil.copyfileobj(source, target, CHUNK)
        elif stored.parent in (work, *own):
            return stored
        else:
            shutil.copyfile(stored, raw)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Refused(f"its gzip data are cut short or damaged: {error}") from error
    except OSError as error:
        if error.errno in FULL:
            raise
        raise Refused(error.strerror or str(error)) from error
    return raw


def place(source: Path, destination: Path, make: Any = None) -> None:
    """Link or copy a file to `destination`, which is either absent or whole at any time.

    `make` does so, by default a hard link where that is possible.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}-{secrets.token_hex(4)}")
    try:
        (make or _link)(source, partial)
        os.replace(partial, destination)
    finally:
        partial.unlink(missing_ok=True)


def _link(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)

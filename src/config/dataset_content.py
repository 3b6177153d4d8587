"""Tell what a user's own files of a dataset hold, where no published checksum does, and what his code is.

A large file is read once: its digest is kept in the cache folder with the file's size and time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.config import import_paths, python_source
from src.config.datasets import GENERATED, ORIGINAL, find_file
from src.machine.folders import files_below

# The packages of this project's readers and generators.
OF_DATASETS = ("src.data.readers", "src.data.generated")
# So many bytes take some time to be read.
LARGE = 10**9


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
    if dataset.get("tree"):
        return _tree_digest(folder)[:12]
    found = {file: find_file(folder, file) for file, checksum in dataset["files"].items() if checksum is None}
    digests = {file: _digest(path) for file, path in found.items() if path is not None}
    if not digests:
        return None
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:12]


def code_of(dataset: Mapping[str, Any]) -> str | None:
    """Return 12 hexadecimal digits that stand for a dataset's reader, and its generator if that makes files.

    They are of what the modules execute, and further readers, generators and modules of the user's own that
    they import; `None` of data without a reader.
    """
    used = [dataset.get("reader"), dataset.get("module")]
    used += [dataset.get("generator") if dataset["source"] == GENERATED else None]
    roots = [path for path in used if path]
    files, _ = python_source.reach(roots, python_source.search_path(), _is_shared)
    digests = {module: python_source.read(path).digest for module, path in sorted(files.items())}
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:12] if digests else None


def _is_shared(module: str) -> bool:
    """Return whether a module is this project's, and neither a reader or generator nor a package of those."""
    return import_paths.is_own(module) and not any(
        f"{each}.".startswith(f"{module}.") or module.startswith(f"{each}.") for each in OF_DATASETS
    )


def _tree_digest(folder: Path) -> str:
    """Return a SHA-256 of the names and digests of all files below a folder, but of hidden ones."""
    paths = {path.relative_to(folder).as_posix(): path for path in files_below(folder)}
    return hashlib.sha256(json.dumps(_digests(folder, paths), sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    """Return a file's SHA-256."""
    return _digests(path, {path.name: path})[path.name]


def _digests(of: Path, paths: Mapping[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of files by their names, kept ones `of` them if size and time are the same."""
    name = hashlib.sha256(os.fsencode(of.absolute())).hexdigest()
    kept = cache_folder() / "digests" / f"{name[:32]}.json"
    known: dict[str, list[Any]] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = json.loads(kept.read_text(encoding="utf-8"))
        # An earlier version kept a file's own figures.
        known = {name: note for name, note in found.items() if isinstance(note, list) and len(note) == 3}
    stats = {name: path.stat() for name, path in paths.items()}
    seen = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    new = [name for name in paths if known.get(name, [])[:2] != seen[name]]
    if (size := sum(seen[name][0] for name in new)) > LARGE:
        print(f"reading {size / 1e9:,.1f} GB of {of} once, to know its content", file=sys.stderr, flush=True)
    digests = {name: str(known[name][2]) for name in paths.keys() - set(new)}
    for each in new:
        with paths[each].open("rb") as file:
            digests[each] = hashlib.file_digest(file, "sha256").hexdigest()
    # Without a cache files are read each time.
    if new:
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False, encoding="utf-8") as whole:
                json.dump({name: [*seen[name], digests[name]] for name in paths}, whole)
            os.replace(whole.name, kept)
    return digests

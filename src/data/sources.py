"""Bring a dataset's raw files: from mirrors, packages, a folder of the user's, or a generator of stand-ins.

A file counts only when its raw bytes have the checksum that the dataset's YAML pins; otherwise it is refused
and the next source is tried. The cache folder keeps verified files, whole packages, and what an interrupted
download has brought:

    files/<checksum>-<file>    packages/<kind>-<package>    incomplete/<checksum>-<file>/    licences/
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from src.config import datasets
from src.data.downloads import CHUNK, GivenUp, Refused, check_room
from src.data.errors import FULL, DataError, DataMistake, clear_disk_errors
from src.data.generate import generate
from src.data.mirrors import Source, open_source, say
from src.machine.file_locks import alone

# Below the raw files: all that is in a folder of the user's.
TREE = "folder"
STUDY_HINT = "or dataset.source=generated for a stand-in (in a study {{name: {name}, source: generated}})"


def fetch(dataset: Mapping[str, Any], target: Path, cache: Path, *, linked: bool = False) -> None:
    """Put every file of `dataset["files"]` into `target`.

    The original's are verified; they come from the folder `dataset["data_dir"]`, or else from the cache or
    the first good source. Those of a stand-in are written by its generator.

    Files of `data_dir` are linked to by symbolic links if they may be `linked`, instead of being copied.

    Raises:
        DataMistake: where only the user can bring the files.
        DataError: with the sources that were tried and why each failed, or the file system that is full.
    """
    with clear_disk_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    if dataset.get("source") == datasets.GENERATED and dataset.get("generator"):
        generate(dataset, target)
        return
    if dataset.get("data_dir") is not None:
        _show_licence(dataset, cache)
        own = Path(dataset["data_dir"]).expanduser()
        with clear_disk_errors(target):
            if dataset.get("tree"):
                _take_tree(own.absolute(), target / TREE, linked=linked)
            else:
                _take(dataset, own, target, linked=linked)
        return
    if dataset.get("tree"):
        raise DataMistake(f"dataset={dataset['name']}: needs your folder: dataset.data_dir=FOLDER")
    spare = (dataset.get("unpack") or {}).get("bytes", 0)
    sources = [open_source(entry, cache, spare) for entry in dataset["sources"]]
    cached = {file: cache / "files" / _cached_name(dataset, file) for file in dataset["files"]}
    with clear_disk_errors(cache):
        missing = [file for file, path in cached.items() if not holds(path, dataset["files"][file])]
        if missing and not sources:
            raise DataMistake(_how_to_bring(dataset, missing))
        if missing:
            _show_licence(dataset, cache)
        for file in missing:
            _obtain(dataset, file, sources, cached[file], cache)
    with clear_disk_errors(target):
        for file, checksum in dataset["files"].items():
            if checksum is None or not holds(target / file, checksum):
                _place(cached[file], target / file)


def _cached_name(dataset: Mapping[str, Any], file: str) -> str:
    """Return the name in the cache of a file, which tells it from others of its name."""
    checksum = dataset["files"][file]
    if checksum is None:
        # A file without a checksum is known by where it comes from alone.
        origin = repr((dataset["name"], file, dataset["sources"]))
        checksum = f"unverified-{hashlib.sha256(origin.encode()).hexdigest()[:16]}"
    return f"{checksum.replace(':', '-')}-{PurePosixPath(file).name}"


def _how_to_bring(dataset: Mapping[str, Any], missing: list[str]) -> str:
    """Return what the user can do about files that can't be fetched."""
    return (
        f"{dataset['name']}: {', '.join(missing)} can't be fetched{datasets.where(dataset, ': ')}; then give "
        f"the folder that has the files, dataset.data_dir=FOLDER{_offer(dataset)}"
    )


def _offer(dataset: Mapping[str, Any]) -> str:
    """Return the offer of a generated stand-in, if there is one."""
    return f", {STUDY_HINT.format(name=dataset['name'])}" if dataset.get("generator") else ""


def _show_licence(dataset: Mapping[str, Any], cache: Path) -> None:
    """Print a dataset's licence, the first time that its original is fetched on this machine."""
    if not dataset.get("licence"):
        return
    text = f"{dataset['name']}: licence: {dataset['licence']}"
    text += f" ({dataset['page']})" if dataset.get("page") else ""
    mark = cache / "licences" / f"{dataset['name']}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not mark.exists():
        say(text)
        with clear_disk_errors(cache):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def _take(dataset: Mapping[str, Any], folder: Path, target: Path, *, linked: bool) -> None:
    """Put the files of the user's own `folder` into `target`, once their checksums are right."""
    for file, checksum in dataset["files"].items():
        own = datasets.find_file(folder, file)
        if own is None:
            raise DataMistake(
                f"{dataset['name']}: dataset.data_dir={folder}: lacks {file}{datasets.where(dataset, '; ')}"
            )
        if checksum is not None and holds(target / file, checksum):
            continue
        check_room(target, file, 0 if linked else own.stat().st_size, 0)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
            try:
                raw = _raw_file(own, file, Path(work)) if own.name != PurePosixPath(file).name else own
                if reason := _wrong_sum(raw, checksum):
                    raise Refused(reason)
            except Refused as refusal:
                raise DataError(f"{dataset['name']}: {own}: {refusal}{_offer(dataset)}") from refusal
            if raw != own:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                os.replace(raw, target / file)
            else:
                _place(own.absolute(), target / file, os.symlink if linked else shutil.copyfile)


def _take_tree(folder: Path, target: Path, *, linked: bool) -> None:
    """Link `target` to the user's own `folder`, or copy what is in it."""
    if linked:
        target.unlink(missing_ok=True)
        target.symlink_to(folder)
    else:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)


def _obtain(dataset: Mapping[str, Any], file: str, sources: list[Source], cached: Path, cache: Path) -> None:
    """Get a file from the first good source into the cache; one process at a time does so."""
    name, checksum = dataset["name"], dataset["files"][file]
    cached.parent.mkdir(parents=True, exist_ok=True)
    kept = cache / "incomplete" / cached.name
    reasons = []
    with _alone(kept, f"{name}: {file} is being fetched"):
        if holds(cached, checksum):
            # Another process has just fetched it.
            return
        for source in sources:
            label = source.label(file)
            if source.given_up is None:
                say(f"{name}: fetching {file} from {label}")
                try:
                    _obtain_from(source, file, checksum, kept, cached)
                    for left in filter(Path.is_file, list(kept.iterdir())):
                        left.unlink()
                    return
                except Refused as refusal:
                    say(f"{name}: warning: refused {file} from {label}: {refusal}")
                    reason = str(refusal)
                    if isinstance(refusal, GivenUp):
                        source.given_up = reason
            else:
                reason = source.given_up
            reasons.append(f"{label} ({reason})")
    raise DataError(
        f"{name}: {file} could not be fetched from any source: {'; '.join(reasons)}{_offer(dataset)}"
    )


def _obtain_from(source: Source, file: str, checksum: str | None, kept: Path, cached: Path) -> None:
    """Get a file from one source into the cache, or raise `Refused`; `kept` is where a part of it may be."""
    with tempfile.TemporaryDirectory(prefix="work-", dir=kept) as work:
        stored = source.stored(file, Path(work), kept)
        try:
            raw = _raw_file(stored, file, Path(work), kept)
            if reason := _wrong_sum(raw, checksum):
                raise source.mistrusted(reason)
        except Refused:
            # What is wrong is not to be gone on with.
            for path in kept.glob(f"{stored.name}*") if stored.parent == kept else ():
                path.unlink()
            raise
        os.replace(raw, cached)


@contextlib.contextmanager
def _alone(folder: Path, purpose: str) -> Iterator[None]:
    """Make a folder and hold it while the block runs, as no other process; it stays if anything is in it."""
    with alone(folder, purpose):
        folder.mkdir(exist_ok=True)
        try:
            for left in folder.glob("work-*"):
                # A process that was killed has left it.
                shutil.rmtree(left)
            yield
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()


def holds(path: Path, checksum: str | None) -> bool:
    """Return whether `path` is a file whose bytes have this checksum; `None` is that of any."""
    return path.is_file() and (checksum is None or _sum(path, checksum) == checksum)


def _sum(path: Path, like: str) -> str:
    """Return the checksum of a file, of the kind of another one: `md5:...`, or a sha256."""
    kind, prefix = ("md5", "md5:") if like.startswith("md5:") else ("sha256", "")
    with path.open("rb") as file:
        return prefix + hashlib.file_digest(file, kind).hexdigest()


def _wrong_sum(raw: Path, checksum: str | None) -> str | None:
    """Return that a file hasn't got a checksum, or `None` where it has."""
    if checksum is None or (found := _sum(raw, checksum)) == checksum:
        return None
    kind = "md5" if checksum.startswith("md5:") else "sha256"
    found, expected = (each.removeprefix("md5:")[:12] for each in (found, checksum))
    return f"its bytes have {kind} {found}…, expected {expected}…"


def _raw_file(stored: Path, file: str, work: Path, *own: Path) -> Path:
    """Return the raw bytes of a file that a source stores, as a file that may be moved away.

    It is in `work`, or the stored one itself where that lies in `work` or in a folder of `own`.
    """
    raw = work / "raw"
    try:
        if stored.suffix in datasets.GZIPPED and not file.endswith(datasets.GZIPPED):
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


def _place(source: Path, destination: Path, make: Any = None) -> None:
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

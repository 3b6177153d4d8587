"""Where raw files come from: mirrors over HTTP, npm and Debian packages, the local disk.

A file counts only when its raw bytes have the sha256 that the dataset's YAML pins; what a source gives is
refused otherwise and the next source is tried. The cache folder keeps verified files and whole packages:

    files/<sha256>-<file>    packages/<kind>-<package>    partial-*  (work in progress)
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import queue
import secrets
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import urlsplit

CONNECT_SECONDS = 5.0
STALL_SECONDS = 30.0
TOOL_SECONDS = 300.0
CHUNK = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT)


class DataError(Exception):
    """Data that can't be had or can't be used; its text is one sentence for the user."""


class Refused(Exception):
    """This source doesn't give this file; the text says why."""


class GivenUp(Refused):
    """This source gives none of the files, so the remaining ones needn't ask it."""


def fetch(dataset: dict[str, Any], target: Path, cache: Path) -> None:
    """Put every file of `dataset["files"]` into `target`, verified, from the cache or the first good source.

    Raises DataError with what was tried and why each failed, or with the file system that is full.
    """
    sources = [_source(entry, cache) for entry in dataset["sources"]]
    with clear_disk_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    for file, sha256 in dataset["files"].items():
        kept = cache / "files" / f"{sha256}-{PurePosixPath(file).name}"
        with clear_disk_errors(cache):
            if not holds(kept, sha256):
                _obtain(dataset["name"], file, sha256, sources, kept, cache)
        with clear_disk_errors(target):
            if not holds(target / file, sha256):
                _place(kept, target / file)


def holds(path: Path, sha256: str) -> bool:
    """Whether `path` is a file whose bytes have this sha256."""
    return path.is_file() and _sha256(path) == sha256


@contextmanager
def clear_disk_errors(folder: Path) -> Iterator[None]:
    """Turn the errors of a full or read-only disk under `folder` into a DataError that names it."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DataError(
                f"the file system {mount_point(folder)} is full: {folder} can't be written"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DataError(f"{error.filename or folder} can't be used: {error.strerror}") from error
        raise


def mount_point(path: Path) -> Path:
    """The mount point of the file system that `path` is on, or would be on once it exists."""
    path = path.resolve()
    while not os.path.ismount(path):
        path = path.parent
    return path


def _obtain(name: str, file: str, sha256: str, sources: list[Source], kept: Path, cache: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for source in sources:
        label = source.label(file)
        if source.given_up is None:
            _say(f"{name}: fetching {file} from {label}")
            try:
                with tempfile.TemporaryDirectory(prefix="partial-", dir=cache) as work:
                    raw = _raw(source.stored(file, Path(work)), file, Path(work))
                    found = _sha256(raw)
                    if found != sha256:
                        raise source.mistrusted(
                            f"its bytes have sha256 {found[:12]}…, expected {sha256[:12]}…"
                        )
                    os.replace(raw, kept)
                return
            except Refused as refusal:
                _say(f"{name}: warning: refused {file} from {label}: {refusal}")
                reason = str(refusal)
                if isinstance(refusal, GivenUp):
                    source.given_up = reason
        else:
            reason = source.given_up
        reasons.append(f"{label} ({reason})")
    tried = "; ".join(reasons) or "its `sources` list is empty"
    raise DataError(f"{name}: {file} could not be fetched from any source: {tried}")


def _raw(stored: Path, file: str, work: Path) -> Path:
    """The raw bytes of what a source stores, as a file in `work` that may be moved away."""
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


def _place(kept: Path, destination: Path) -> None:
    """Hard link or copy, so that `destination` is either absent or whole at any time."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}-{secrets.token_hex(4)}")
    try:
        try:
            os.link(kept, partial)
        except OSError:
            shutil.copyfile(kept, partial)
        os.replace(partial, destination)
    finally:
        partial.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Source:
    """One entry of a dataset's `sources`."""

    def __init__(self, location: str, member: str, cache: Path) -> None:
        self.location = location
        self.member = member
        self.cache = cache
        self.given_up: str | None = None

    def label(self, file: str) -> str:
        return self.location.replace("{file}", file)

    def stored(self, file: str, work: Path) -> Path:
        """Bring the bytes as the source stores them, in `work` or on the local disk; raises Refused."""
        raise NotImplementedError

    def mistrusted(self, reason: str) -> Refused:
        """The exception to raise when what came from here is damaged or altered."""
        return Refused(reason)


class LocalPath(Source):
    """`path`: a file on this machine."""

    def stored(self, file: str, work: Path) -> Path:
        path = Path(self.label(file)).expanduser()
        if not path.is_file():
            raise Refused("there is no such file")
        return path


class Mirror(Source):
    """`url`: one URL a file."""

    reached = False

    def stored(self, file: str, work: Path) -> Path:
        import pooch
        import requests

        url = self.label(file)
        if not self.reached:
            _connect(url)
            self.reached = True
        stored = work / PurePosixPath(urlsplit(url).path).name
        download = pooch.HTTPDownloader(
            progressbar=sys.stderr.isatty(), chunk_size=CHUNK, timeout=(CONNECT_SECONDS, STALL_SECONDS)
        )
        try:
            download(url, str(stored), None)
        except requests.exceptions.ChunkedEncodingError as error:
            raise Refused("the connection was cut") from error
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
            raise GivenUp(f"no connection: {_root_cause(error)}") from error
        except requests.exceptions.RequestException as error:
            raise Refused(str(error)) from error
        return stored


def _connect(url: str) -> None:
    """Raise GivenUp unless the host of `url`, or the environment's proxy, accepts within CONNECT_SECONDS.

    A requests time-out holds for each of a host's addresses in turn (an S3 bucket has eight) and not for the
    name look-up, so a network that drops packets would keep the user waiting for minutes.
    """
    from requests.utils import get_environ_proxies, prepend_scheme_if_needed, select_proxy

    proxy = select_proxy(url, get_environ_proxies(url))
    way = urlsplit(prepend_scheme_if_needed(proxy, "http") if proxy else url)
    port = way.port or (443 if way.scheme == "https" else 80)
    outcome: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()

    def attempt() -> None:
        try:
            socket.create_connection((way.hostname, port), timeout=CONNECT_SECONDS).close()
            outcome.put(None)
        except OSError as error:
            outcome.put(error)

    threading.Thread(target=attempt, daemon=True).start()
    try:
        error = outcome.get(timeout=CONNECT_SECONDS)
    except queue.Empty:
        error = TimeoutError()
    if isinstance(error, TimeoutError):
        raise GivenUp(f"no connection to {way.hostname} within {CONNECT_SECONDS:g} s")
    if error is not None:
        raise GivenUp(f"no connection to {way.hostname}: {error.strerror or error}")


def _root_cause(error: BaseException) -> str:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error)


class Package(Source):
    """An archive with all the files, downloaded once by the tool it belongs to."""

    kind: str
    suffix: str

    def label(self, file: str) -> str:
        return f"{self.kind} package {self.location}"

    @property
    def archive(self) -> Path:
        return self.cache / "packages" / f"{self.kind}-{self.location.replace('/', '_')}{self.suffix}"

    def stored(self, file: str, work: Path) -> Path:
        if not self.archive.is_file():
            self.download(work)
            found = sorted(work.glob(f"*{self.suffix}"))
            if not found:
                raise GivenUp(f"its download left no {self.suffix} file")
            self.archive.parent.mkdir(parents=True, exist_ok=True)
            os.replace(found[0], self.archive)
        member = PurePosixPath(self.member.replace("{file}", file))
        stored = work / member.name
        try:
            with tarfile.open(self.tar(work)) as tar:
                entry = next((entry for entry in tar if PurePosixPath(entry.name) == member), None)
                content = tar.extractfile(entry) if entry else None
                if content is None:
                    raise Refused(f"it has no member {member}")
                with content, stored.open("wb") as target:
                    shutil.copyfileobj(content, target, CHUNK)
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self.mistrusted(f"its archive is damaged: {error}") from error
        return stored

    def mistrusted(self, reason: str) -> Refused:
        # Kept, a bad archive would be tried again for ever; dropped, the next run asks for a fresh one.
        self.archive.unlink(missing_ok=True)
        return GivenUp(reason)

    def download(self, work: Path) -> None:
        """Let the tool put the archive into `work`."""
        raise NotImplementedError

    def tar(self, work: Path) -> Path:
        """A tar file of the archive's content."""
        return self.archive


class NpmPackage(Package):
    kind = "npm"
    suffix = ".tgz"

    def download(self, work: Path) -> None:
        quiet = ["--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        _run(["npm", "pack", "--ignore-scripts", *quiet, self.location], work)


class AptPackage(Package):
    kind = "apt"
    suffix = ".deb"

    def download(self, work: Path) -> None:
        command = ["apt-get", "-q", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=15"]
        try:
            _run([*command, "download", self.location], work)
        except GivenUp as first:
            # A fresh machine has no package lists yet; only root may fetch them.
            try:
                _run([*command, "update"], work)
            except GivenUp:
                raise first from None
            _run([*command, "download", self.location], work)

    def tar(self, work: Path) -> Path:
        tar = work / "content.tar"
        with tar.open("wb") as output:
            _run(["dpkg-deb", "--fsys-tarfile", str(self.archive)], work, output)
        return tar


def _run(command: list[str], work: Path, output: int | BinaryIO = subprocess.DEVNULL) -> None:
    """Run a tool in `work`; raises GivenUp with the first line of its complaint."""
    tool = command[0]
    if shutil.which(tool) is None:
        raise GivenUp(f"{tool} is not installed")
    if output == subprocess.DEVNULL:
        # It downloads, which takes a while.
        _say(f"running {' '.join(command)}")
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=TOOL_SECONDS,
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise GivenUp(f"{tool} took longer than {TOOL_SECONDS:g} s") from error
    if done.returncode == 0:
        return
    complaint = done.stderr.decode(errors="replace")
    if "ENOSPC" in complaint or "No space left" in complaint:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(work))
    lines = [
        line for line in complaint.splitlines() if line.strip() and not line.startswith(("W:", "npm warn"))
    ]
    raise GivenUp(f"{tool} exited with {done.returncode}: {lines[0] if lines else 'no message'}")


KINDS: dict[str, type[Source]] = {"url": Mirror, "npm": NpmPackage, "apt": AptPackage, "path": LocalPath}


def _source(entry: dict[str, str], cache: Path) -> Source:
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        raise DataError(f"a source has exactly one of {', '.join(KINDS)}, got {entry}")
    if issubclass(KINDS[kinds[0]], Package) and "member" not in entry:
        raise DataError(f"a source of kind {kinds[0]} names its `member`, got {entry}")
    return KINDS[kinds[0]](entry[kinds[0]], entry.get("member", ""), cache)

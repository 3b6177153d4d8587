"""Get files from the kinds of source that a dataset's YAML names.

These are HTTP mirrors, npm and Debian packages, and the local disk.
"""

from __future__ import annotations

import errno
import gzip
import os
import queue
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import urlsplit

from src.data.errors import DataError

# Bytes that are copied at once.
CHUNK = 1 << 20
CONNECT_SECONDS = 5.0
STALL_SECONDS = 30.0
TOOL_SECONDS = 300.0


class Refused(Exception):
    """The refusal of one file of a source; its text says why."""


class GivenUp(Refused):
    """The refusal of a whole source, which needn't be asked for further files."""


def say(line: str) -> None:
    """Print a line on standard error, for the person who waits."""
    print(line, file=sys.stderr, flush=True)


class Source:
    """One entry of a dataset's `sources`.

    Attributes:
        location: URL, package or path; `{file}` stands for a file's name.
        member: path of a file in a package's archive; `{file}` stands for its name.
        cache: the folder where whole packages are kept.
        given_up: why the source gives none of the files, `None` until that is known.
    """

    def __init__(self, location: str, member: str, cache: Path) -> None:
        self.location = location
        self.member = member
        self.cache = cache
        self.given_up: str | None = None

    def label(self, file: str) -> str:
        """Return the source's name in messages about `file`."""
        return self.location.replace("{file}", file)

    def stored(self, file: str, work: Path) -> Path:
        """Return a file with the bytes as the source stores them, in `work` or elsewhere on the local disk.

        Raises:
            Refused: if the source doesn't give `file`.
        """
        raise NotImplementedError

    def mistrusted(self, reason: str) -> Refused:
        """Return the exception to raise when bytes from this source are damaged or altered."""
        return Refused(reason)


class LocalPath(Source):
    """A source of kind `path`: a file on this machine."""

    def stored(self, file: str, work: Path) -> Path:
        path = Path(self.label(file)).expanduser()
        if not path.is_file():
            raise Refused("there is no such file")
        return path


class Mirror(Source):
    """A source of kind `url`: one URL a file."""

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
    """Raise `GivenUp` unless the host of `url`, or the environment's proxy, accepts within CONNECT_SECONDS.

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
    """A source of one archive with all the files, downloaded once by the package manager's tool."""

    kind: str
    suffix: str

    def label(self, file: str) -> str:
        return f"{self.kind} package {self.location}"

    @property
    def archive(self) -> Path:
        """Return the path of the archive in the cache."""
        return self.cache / "packages" / f"{self.kind}-{self.location.replace('/', '_')}{self.suffix}"

    def stored(self, file: str, work: Path) -> Path:
        if not self.archive.is_file():
            self.download(work)
            archives = sorted(work.glob(f"*{self.suffix}"))
            if not archives:
                raise GivenUp(f"its download left no {self.suffix} file")
            self.archive.parent.mkdir(parents=True, exist_ok=True)
            os.replace(archives[0], self.archive)
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
        # The bad archive is removed, so that the next run downloads a fresh one.
        self.archive.unlink(missing_ok=True)
        return GivenUp(reason)

    def download(self, work: Path) -> None:
        """Download the archive into `work` by the tool."""
        raise NotImplementedError

    def tar(self, work: Path) -> Path:
        """Return a tar file of the archive's content."""
        return self.archive


class NpmPackage(Package):
    """A source of kind `npm`: a package that `npm pack` downloads."""

    kind = "npm"
    suffix = ".tgz"

    def download(self, work: Path) -> None:
        quiet = ["--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        _run(["npm", "pack", "--ignore-scripts", *quiet, self.location], work)


class AptPackage(Package):
    """A source of kind `apt`: a Debian package that `apt-get` downloads."""

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
    """Run a tool in `work`; raise `GivenUp` with the first line of its error output if it fails."""
    tool = command[0]
    if shutil.which(tool) is None:
        raise GivenUp(f"{tool} is not installed")
    if output == subprocess.DEVNULL:
        # A tool without output downloads, which takes a while.
        say(f"running {' '.join(command)}")
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


def open_source(entry: dict[str, str], cache: Path) -> Source:
    """Make the source of one entry of `sources`, with whole packages kept in `cache`.

    Raises:
        DataError: for an entry of no kind or of several, or a package without `member`.
    """
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        raise DataError(f"a source has exactly one of {', '.join(KINDS)}, got {entry}")
    if issubclass(KINDS[kinds[0]], Package) and "member" not in entry:
        raise DataError(f"a source of kind {kinds[0]} names its `member`, got {entry}")
    return KINDS[kinds[0]](entry[kinds[0]], entry.get("member", ""), cache)

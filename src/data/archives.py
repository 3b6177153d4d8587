"""Unpack archives that nobody vouches for: zip and tar files, the latter plain or compressed by gzip.

No path leaves the folder, nothing but files and folders is made, and what comes out is counted while it is
written: the sizes in an archive's headers are what its author wants them to be.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from src.data.errors import DataError, clear_disk_errors

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
CHUNK = 1 << 20
GZIP, ZIP = b"\x1f\x8b", b"PK"
BLOCK = tarfile.BLOCKSIZE
# Bytes of a tar file that go with each member besides its own: headers, long names, padding.
HEADERS = 16 * BLOCK
# At the end of a tar file come blocks of zeros, as many as fill a record of the tape's size.
PADDING = 1 << 20
ENCRYPTED = 0x1
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class _Refused(Exception):
    """The refusal of an archive; its text goes on after the archive's name."""


def unpack_all(dataset: Mapping[str, Any], raw: Path, target: Path) -> Path:
    """Unpack each archive of `raw` into a folder of its name without the suffix, and return `target`.

    Other files are linked to. An archive that an earlier call has unpacked is left as it is.

    Raises:
        DataError: for an archive that is damaged, or that holds more or other things than it may.
    """
    target.mkdir(exist_ok=True)
    for file in dataset["files"]:
        suffix = next((each for each in SUFFIXES if file.endswith(each)), None)
        unpacked = target / file.removesuffix(suffix or "")
        if unpacked.exists():
            continue
        unpacked.parent.mkdir(parents=True, exist_ok=True)
        if suffix is None:
            os.symlink((raw / file).resolve(), unpacked)
            continue
        print(f"{dataset['name']}: unpacking {file}", file=sys.stderr, flush=True)
        limits = dataset["unpack"]
        unpack(raw / file, unpacked, most_bytes=limits["bytes"], most_files=limits["files"])
    return target


def unpack(archive: Path, target: Path, *, most_bytes: int, most_files: int) -> None:
    """Unpack a zip or tar file into `target`, which appears once it is whole.

    Files and folders get plain permissions and the present time.

    Args:
        archive: the file; its kind is told by its first bytes.
        target: a folder that isn't there yet, or is empty.
        most_bytes: the greatest size of all files together, in bytes.
        most_files: the greatest number of files, and of folders.

    Raises:
        DataError: for an archive that is damaged, encrypted or too large, or has a member that would leave
            the folder, is no file or folder, or has another one's name; nothing of it is left.
    """
    with clear_disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
            new = Path(work) / "new"
            new.mkdir()
            try:
                with archive.open("rb") as file:
                    _unpack(file, _Folder(new, most_bytes, most_files))
            except _Refused as refusal:
                raise DataError(f"{archive.name}: {refusal}; nothing of it was kept") from refusal
            except Exception as error:
                if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                    raise
                # The libraries that read it check a part of what they read alone.
                raise DataError(
                    f"{archive.name}: is cut short or damaged: {error}; nothing of it was kept"
                ) from error
            os.rename(new, target)


def _unpack(file: IO[bytes], folder: _Folder) -> None:
    magic = file.read(2)
    file.seek(0)
    if magic == ZIP:
        _unpack_zip(file, folder)
    elif magic == GZIP:
        _unpack_tar(gzip.GzipFile(fileobj=file), folder)
    else:
        _unpack_tar(file, folder)


@dataclass
class _Folder:
    """A folder that is filled with an archive's members, within bounds.

    Attributes:
        path: the folder, which nobody else writes to.
        most_bytes: the greatest size of all files together.
        most_files: the greatest number of files, and of folders.
    """

    path: Path
    most_bytes: int
    most_files: int
    _bytes: int = 0
    _files: set[tuple[str, ...]] = field(default_factory=set)
    _folders: set[tuple[str, ...]] = field(default_factory=set)

    def add_folder(self, name: str) -> None:
        """Make the folder that a member is."""
        self._make(_parts(name), name)

    def add_file(self, name: str, content: IO[bytes]) -> None:
        """Write the file that a member is, chunk by chunk."""
        parts = _parts(name)
        if parts in self._files or parts in self._folders or not parts:
            raise _Refused(f"has {name!r} twice")
        self._make(parts[:-1], name)
        self._files.add(parts)
        if len(self._files) > self.most_files:
            raise _Refused(f"has more than {self.most_files:,} files")
        with self.path.joinpath(*parts).open("xb") as target:
            while chunk := content.read(CHUNK):
                self._bytes += len(chunk)
                if self._bytes > self.most_bytes:
                    raise _Refused(f"holds more than {self.most_bytes:,} bytes, at {name!r}")
                target.write(chunk)

    def _make(self, parts: tuple[str, ...], name: str) -> None:
        """Make a folder and those above it, for the member `name`."""
        for length in range(1, len(parts) + 1):
            part = parts[:length]
            if part in self._files:
                raise _Refused(f"has {name!r} below a file")
            if part not in self._folders:
                self._folders.add(part)
                if len(self._folders) > self.most_files:
                    raise _Refused(f"has more than {self.most_files:,} folders")
                self.path.joinpath(*part).mkdir()


def _parts(name: str) -> tuple[str, ...]:
    """Return the folders and the file that a member's name consists of; refuse one that leads elsewhere."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or re.match("[A-Za-z]:", name):
        raise _Refused(f"the path of {name!r} leaves the folder")
    if "\\" in name:
        raise _Refused(f"{name!r} has a backslash, which is a folder's end on Windows alone")
    if "\0" in name or any(len(os.fsencode(part)) > os.pathconf("/", "PC_NAME_MAX") for part in parts):
        raise _Refused(f"{name[:80]!r} is no name for a file")
    return parts


def _unpack_zip(file: IO[bytes], folder: _Folder) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            # Some programs of Windows separate folders so.
            name = member.orig_filename.replace("\\", "/")
            # The upper half has the mode that Unix knows; other systems leave it 0.
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.flag_bits & ENCRYPTED:
                raise _Refused(f"{name!r} is encrypted")
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _Refused(f"{name!r} is a {'link' if kind == stat.S_IFLNK else 'special file'}")
            if name.endswith("/"):
                folder.add_folder(name)
                continue
            if member.compress_type not in ZIP_METHODS:
                raise _Refused(f"{name!r} is compressed by method {member.compress_type}, not by deflate")
            # Its bytes may be cut off where the header says, and then have another sum.
            with archive.open(member) as content:
                folder.add_file(name, content)


def _unpack_tar(file: IO[bytes] | gzip.GzipFile, folder: _Folder) -> None:
    bounded = _Bounded(file, folder.most_bytes + 2 * folder.most_files * HEADERS + PADDING)
    with tarfile.open(fileobj=bounded, mode="r:") as archive:  # type: ignore[call-overload]
        while (member := archive.next()) is not None:
            # None of them is kept in memory.
            archive.members.clear()
            name = member.name
            if member.issym() or member.islnk():
                raise _Refused(f"{name!r} is a link")
            if member.isdir():
                folder.add_folder(name)
            elif (
                member.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE) and not member.issparse()
            ):
                content = archive.extractfile(member)
                assert content is not None
                with content:
                    folder.add_file(name, content)
            else:
                raise _Refused(f"{name!r} is {'sparse' if member.issparse() else 'a special file'}")
    # tarfile takes whatever is no header for the end.
    if bounded.last != bytes(BLOCK):
        raise EOFError("it doesn't end as a tar file does")
    # Read on to the end, so that gzip compares its sum.
    while bounded.read(CHUNK):
        pass


class _Bounded:
    """A file that is read forwards and may give so many bytes only, few at a time."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, most: int) -> None:
        self._file = file
        self._left = most
        self._place = 0
        # This was read last.
        self.last = b""

    def tell(self) -> int:
        """Return how many bytes were read or passed over."""
        return self._place

    def read(self, count: int) -> bytes:
        """Read up to `count` bytes; refuse more than a chunk, as a header that claims to be that long."""
        if count > CHUNK:
            raise _Refused(f"has a header of {count:,} bytes")
        self.last = self._file.read(count)
        self._place += len(self.last)
        self._left -= len(self.last)
        if self._left < 0:
            raise _Refused("holds more bytes than its files may have")
        return self.last

    def seek(self, place: int) -> None:
        """Pass over the bytes up to `place`."""
        if place < self._place:
            raise tarfile.ReadError("a member lies before the one that it follows")
        while self._place < place and self.read(min(CHUNK, place - self._place)):
            pass

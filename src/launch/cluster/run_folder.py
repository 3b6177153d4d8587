"""Keep a run's directory on a host of a cluster the same as the parent's: files come, and changes go back.

Only what the host's own processes change goes back: each file belongs to one process of the run.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from src.machine.folders import FULL

# A reply holds no more than this of a file.
CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class Piece:
    """Bytes of a file.

    Attributes:
        name: the file's path within its folder.
        offset: where in the file they belong.
        data: the bytes.
        appended: whether they go to the end of the file that is there; else they are of a new file, which
            takes its place once it is complete.
        last: whether the file is complete with them.
        removed: whether there is no such file any more.
    """

    name: str
    offset: int
    data: bytes
    appended: bool = False
    last: bool = True
    removed: bool = False


def write(folder: Path, piece: Piece, complete_as: str | None = None, writer: str = "") -> None:
    """Write a piece into a folder; the pieces of a file come in their order.

    A file appears once it is complete: by its own name, or `complete_as`. What is appended appears at once.
    Where others may write the same file at the same time, each has another name as `writer`.
    """
    path = folder / piece.name
    if piece.removed:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path if piece.appended else path.with_name(f".{path.name}.arriving{writer}")
    try:
        with target.open("r+b" if piece.appended or piece.offset else "wb") as file:
            file.seek(piece.offset)
            file.write(piece.data)
    except OSError as error:
        if error.errno in FULL and not piece.appended:
            target.unlink(missing_ok=True)
        raise
    if piece.last and not piece.appended:
        os.replace(target, path if complete_as is None else path.with_name(complete_as))


def pieces_of(path: Path, name: str) -> Iterator[Piece]:
    """Yield the pieces of a file, which is called `name` where they go."""
    return _closing(path.open("rb"), name)


def _closing(file: BinaryIO, name: str) -> Iterator[Piece]:
    """Yield the pieces of an open file, whatever takes its place meanwhile, and close it.

    An empty file has one.
    """
    with file:
        size, offset, last = os.fstat(file.fileno()).st_size, 0, False
        while not last:
            data = file.read(CHUNK_BYTES)
            last = offset + len(data) >= size or not data
            yield Piece(name, offset, data, last=last)
            offset += len(data)


@dataclass(frozen=True)
class _State:
    """The state of a file: its inode, size and time of modification (ns)."""

    inode: int
    size: int
    changed: int


class RunFolder:
    """A run's directory on a host, whose changes are told once."""

    def __init__(self, folder: Path) -> None:
        """Follow the files in `folder`, which is empty."""
        self.folder = folder
        # It is written to and looked at in several threads.
        self._lock = threading.Lock()
        self._known: dict[str, _State] = {}
        # Files that were not there at the last look: another one may be about to take their place.
        self._missing: set[str] = set()
        # The rest of a file of which a piece is told already.
        self._rest: Iterator[Piece] | None = None

    def put(self, piece: Piece) -> None:
        """Write a piece of a file that the parent has, and which so is no change."""
        with self._lock:
            write(self.folder, piece)
            if piece.last:
                self._known[piece.name] = _state_of(self.folder / piece.name)

    def changes(self) -> list[Piece]:
        """Return pieces of what has changed since the last call; an empty list when that was all.

        Files whose names begin with a dot are temporary, and are left out.
        """
        with self._lock:
            if self._rest is not None:
                if piece := next(self._rest, None):
                    return [piece]
                self._rest = None
            found = self._removed()
            for path in sorted(self.folder.rglob("[!.]*")):
                name = str(path.relative_to(self.folder))
                # One that was replaced or removed meanwhile is seen at the next call.
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file() and (piece := self._change(path, name)) is not None:
                        found.append(piece)
                        if not piece.last:
                            break
            return found

    def _removed(self) -> list[Piece]:
        """Return the files that were there, and twice not any more."""
        missing = {name for name in self._known if not (self.folder / name).exists()}
        gone, self._missing = missing & self._missing, missing - self._missing
        for name in gone:
            del self._known[name]
        return [Piece(name, 0, b"", removed=True) for name in sorted(gone)]

    def _change(self, path: Path, name: str) -> Piece | None:
        """Return the next piece of a file, `None` where it is as known."""
        known, now = self._known.get(name), _state_of(path)
        if known == now:
            return None
        if known is not None and known.inode == now.inode and known.size < now.size:
            with path.open("rb") as file:
                file.seek(known.size)
                data = file.read(CHUNK_BYTES)
            self._known[name] = _State(now.inode, known.size + len(data), now.changed)
            return Piece(name, known.size, data, appended=True)
        file = path.open("rb")
        self._known[name] = _state_of(file.fileno())
        pieces = _closing(file, name)
        first = next(pieces)
        if not first.last:
            self._rest = pieces
        return first


def _state_of(file: Path | int) -> _State:
    """Return the state of a file, which may be open."""
    status = os.stat(file)
    return _State(status.st_ino, status.st_size, status.st_mtime_ns)

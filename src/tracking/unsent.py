"""Remember on disk which MLflow runs the store doesn't have whole, until it has.

There is a file for each: it is written before a run is opened in the store, and removed when the store has
confirmed the whole run. The process that owns it holds a lock on it, so that another one completes a run only
after its owner has ended, in whatever way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from src.config.tracking_address import redacted
from src.machine import file_locks
from src.tracking.store import same_store, unsent_folder


@dataclass
class RunNote:
    """A note on all that it takes to open a run in MLflow, to complete it, and to end it.

    Times are in seconds since 1970.

    Attributes:
        uri: the store's address; on disk without a user and a password.
        name: the run's name in MLflow.
        started: when the run began.
        tags: its tags.
        params: its parameters.
        dataset: the fields of MLflow's `Dataset` on which it was trained.
        folder: the run's directory; `None` for a sweep, which has none.
        sweep: the key of the sweep to which it belongs.
        key: is unique, and a tag of the run in MLflow, by which it is found again.
        status: MLflow's status of a run that has ended.
        ended: when it ended.
        final_tags: tags that are set at the end.
    """

    uri: str
    name: str
    started: float
    tags: Mapping[str, str]
    params: Mapping[str, str] = field(default_factory=dict)
    dataset: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    sweep: str | None = None
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    status: str | None = None
    ended: float | None = None
    final_tags: Mapping[str, str] = field(default_factory=dict)


class NoteFile:
    """The file of a note, which this process owns until it is closed or removed."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Own the file at `path`, which is open and locked as `descriptor`."""
        self._path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def create(cls, note: RunNote) -> NoteFile:
        """Write a note into a new file.

        Raises OSError where that can't be written.
        """
        path = _path_of(note.uri, note.key)
        descriptor = file_locks.lock(path, wait=True, mode=0o600)
        assert descriptor is not None, "it was waited for"
        file = cls(path, descriptor)
        file.write(note)
        return file

    @classmethod
    def take(cls, path: Path) -> NoteFile | None:
        """Own the file at `path`; `None` if another process does, or it is gone."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file_locks.is_at(descriptor, path):
                return cls(path, descriptor)
        except OSError:
            # It is another's.
            pass
        os.close(descriptor)
        return None

    def write(self, note: RunNote) -> None:
        """Write a note in the place of the former one."""
        assert self._descriptor is not None
        text = json.dumps(dataclasses.asdict(note) | {"uri": redacted(note.uri)}).encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def close(self) -> None:
        """Leave the file to others; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> None:
        """Remove the file, and its folder if it was the last one there."""
        self._path.unlink(missing_ok=True)
        self.close()
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()


def read_note(path: Path) -> RunNote | None:
    """Return the note in the file at `path`, `None` if it can't be read."""
    try:
        # What follows is left of a longer note that this one was replacing when its process was killed.
        fields: dict[str, Any] = json.JSONDecoder().raw_decode(path.read_text())[0]
        return RunNote(**fields)
    except (OSError, ValueError, TypeError):
        return None


def note_of(uri: str, key: str) -> RunNote | None:
    """Return the note of the run with this key, whoever owns it; `None` if there is none."""
    return read_note(_path_of(uri, key))


def _path_of(uri: str, key: str) -> Path:
    return unsent_folder(uri) / f"{key}.json"


def ownerless_notes(uri: str) -> Iterator[tuple[NoteFile, RunNote]]:
    """Yield the notes on runs of the store at `uri` whose owner has ended; sweeps come after their runs.

    Each file is this process's until it is closed or removed. Unreadable ones are left out. A note's
    address is `uri`, whose password may be another than that of then.
    """
    notes = [(path, read_note(path)) for path in sorted(unsent_folder(uri).glob("*.json"))]
    for path, seen in sorted(notes, key=lambda each: each[1] is not None and each[1].folder is None):
        if seen is None or not same_store(seen.uri, uri) or (file := NoteFile.take(path)) is None:
            continue
        note = read_note(path)
        if note is None:
            file.close()
        else:
            yield file, dataclasses.replace(note, uri=uri)

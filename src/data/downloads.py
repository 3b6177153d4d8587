"""Download a file by HTTP so that an interrupted download goes on where it ended.

What has arrived stays in a partial file, with the server's validator beside it (ETag or Last-Modified). The
next try asks for the rest on the condition that the file is still the same (RFC 9110, sections 13.1.5 and
14.2); a server that has another file by now, or doesn't know ranges, sends the whole.
"""

from __future__ import annotations

import json
import queue
import shutil
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

from src.data.errors import DataError, mount_point
from src.machine.terminal_bar import TerminalBar

# Bytes that are read and written at once; of a connection that is cut, less than that is lost.
CHUNK = 1 << 16
CONNECT_SECONDS = 5.0
STALL_SECONDS = 30.0
# Connections that may be cut one after the other, if each has brought something.
CUTS = 20
OK, PARTIAL, RANGE_NOT_SATISFIABLE = 200, 206, 416


class Refused(Exception):
    """The refusal of one file of a source; its text says why."""


class GivenUp(Refused):
    """The refusal of a whole source, which needn't be asked for further files."""


class Cut(Refused):
    """The refusal of a file whose connection was cut; what has arrived is kept if the rest can follow."""


@dataclass(frozen=True)
class Download:
    """A file at a URL, and where it goes.

    Attributes:
        url: the address.
        path: the file with what has arrived; its validator stands in a file beside it.
        label: what it is, for messages.
        spare: bytes that must be free besides those that are missing.
    """

    url: str
    path: Path
    label: str
    spare: int = 0

    def run(self) -> None:
        """Download what is missing; a connection that is cut is made anew as long as that brings something.

        Raises:
            Refused: if the server doesn't give the file.
            DataError: if there is too little room for it.
        """
        for _ in range(CUTS):
            before = self._arrived()
            try:
                return self._get()
            except Cut:
                if self._arrived() <= before:
                    raise
        self._get()

    @property
    def _note(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    def _arrived(self) -> int:
        """Return how many bytes have arrived that the rest can follow."""
        return self.path.stat().st_size if self.path.is_file() and self._note.is_file() else 0

    def _get(self) -> None:
        import requests

        arrived, asked = self._arrived(), {"Accept-Encoding": "identity"}
        if arrived:
            known = self._known()
            if arrived == known["total"]:
                return None
            asked |= {"Range": f"bytes={arrived}-", "If-Range": str(known["validator"])}
        try:
            with requests.get(
                self.url, headers=asked, stream=True, timeout=(CONNECT_SECONDS, STALL_SECONDS)
            ) as answer:
                if arrived and answer.status_code == RANGE_NOT_SATISFIABLE:
                    # The file is a shorter one by now.
                    self.forget()
                    return self._get()
                answer.raise_for_status()
                if answer.status_code != PARTIAL or not _begins_at(answer.headers, arrived):
                    self.forget()
                    arrived = 0
                return self._write(answer, arrived)
        except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError) as error:
            raise self._cut() from error
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
            if self._arrived() > arrived:
                raise self._cut() from error
            raise GivenUp(f"no connection: {_root_cause(error)}") from error
        except requests.exceptions.RequestException as error:
            raise Refused(str(error)) from error

    def _write(self, answer: Any, arrived: int) -> None:
        """Append an answer's bytes to those that have arrived."""
        length = answer.headers.get("Content-Length", "")
        # What a server compresses on its way has another length.
        missing = int(length) if length.isdecimal() and "Content-Encoding" not in answer.headers else None
        check_room(self.path.parent, self.label, missing or 0, self.spare)
        total = None if missing is None else arrived + missing
        validator = _validator_of(answer.headers)
        if validator and total is not None and not arrived:
            note = {"url": self.url, "validator": validator, "total": total}
            self._note.write_text(json.dumps(note), encoding="utf-8")
        with self.path.open("ab") as target, _shown(self.label, total, arrived) as bar:
            for chunk in answer.iter_content(CHUNK):
                target.write(chunk)
                bar.advance(len(chunk))
        if total is not None and self.path.stat().st_size != total:
            raise self._cut()

    def _cut(self) -> Cut:
        """Return the error of a cut connection; forget what can't be followed."""
        if not self._note.is_file():
            self.forget()
        return Cut("the connection was cut")

    def _known(self) -> dict[str, Any]:
        """Return the validator and the length of what has arrived, or those of no file."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            return {"validator": note["validator"], "total": note["total"]}
        except (OSError, ValueError, KeyError, TypeError):
            return {"validator": '"none"', "total": None}

    def forget(self) -> None:
        """Remove what has arrived."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def _shown(label: str, total: int | None, done: int) -> TerminalBar:
    """Return a display of a download of `total` bytes, `None` if not known, of which some are `done`."""

    def line(count: float) -> str:
        of = f" of {megabytes(total)} ({count / total:.0%})" if total else ""
        return f"{label}: {megabytes(count)}{of}"

    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return TerminalBar(label, *columns, total=total, done=done, line=line)


def megabytes(count: float) -> str:
    """Return a number of bytes as it is shown."""
    return f"{count / 1e6:,.1f} MB"


def _begins_at(headers: Any, start: int) -> bool:
    return str(headers.get("Content-Range", "")).startswith(f"bytes {start}-")


def _validator_of(headers: Any) -> str | None:
    """Return what tells a file from a later one at the same URL, or `None`: a weak ETag doesn't."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def check_room(folder: Path, label: str, missing: int, spare: int) -> None:
    """Raise `DataError` unless the file system of `folder` has room for `missing` and `spare` bytes."""
    free = shutil.disk_usage(folder).free
    if missing + spare > free:
        more = f" and up to {megabytes(spare)} for what it unpacks to" if spare else ""
        raise DataError(
            f"{label}: needs {megabytes(missing)}{more}, and the file system {mount_point(folder)} has "
            f"{megabytes(free)} free"
        )


def connect(url: str) -> None:
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

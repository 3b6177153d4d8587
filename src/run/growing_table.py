"""Read a CSV file while another process writes it."""

from __future__ import annotations

import os
from pathlib import Path

from src.run.tables import Row, parse_rows


class GrowingTable:
    """A CSV file with a heading, to which another process appends rows.

    Attributes:
        replaced: whether the last `read` found another file in its place, or a shorter one, and began anew.
        written: when the file was last written to, in seconds since 1970.
    """

    def __init__(self, path: Path) -> None:
        """Begin with the first row of the file at `path`, which need not be there yet."""
        self.replaced = False
        self.written = 0.0
        self._path = path
        self._file: int | None = None
        self._offset = 0
        self._fields: list[str] = []

    def read(self) -> list[Row]:
        """Return the rows that were written since the last call, in full; none without the file."""
        self.replaced = False
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._file or status.st_size < self._offset:
                    self.replaced = self._file is not None
                    self._file, self._offset, self._fields = status.st_ino, 0, []
                self.written = status.st_mtime
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return []
        # The last line may be half written.
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        if lines and not self._fields:
            self._fields = lines.pop(0).split(",")
        return list(parse_rows(lines, self._fields))

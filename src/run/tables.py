"""Read and write the files of a run: CSV tables, in whole rows even after a kill, and mappings."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Row = dict[str, Any]

STEP_FIELDS = ("epoch", "step", "seconds", "samples", "loss", "staleness")
EPOCH_FIELDS = (
    "epoch", "seconds", "train_loss", "train_accuracy",
    "loss", "accuracy", "validation_seconds", "step",
    # The task's first metric, and as JSON all of them, on the test set and over the steps before.
    "score", "train_score", "metrics", "train_metrics",
)  # fmt: skip
# A row of these is one worker's, over the timed window; exchanging includes waiting for others.
WORKER_FIELDS = (
    "rank", "steps", "samples", "seconds", "busy_seconds", "exchange_seconds",
    "fetched_bytes", "pushed_bytes", "staleness_mean", "staleness_max",
)  # fmt: skip
# A row of these is one rank's exchanges of one kind along one axis, in a step.
EXCHANGE_FIELDS = ("rank", "axis", "kind", "ranks", "exchanges", "bytes", "ring_bytes")
TRACE_FIELDS = (
    "time", "rank", "device", "utilization", "memory_bytes", "power_watts",
    "network_sent_bytes", "network_received_bytes",
    "host_utilization", "host_memory_bytes", "disk_read_bytes", "disk_written_bytes",
    # The name of the rank's host, empty where the run has one host.
    "host",
)  # fmt: skip
# A row of these is one network interface of one of the run's hosts, whose name is empty if it has no others.
INTERFACE_FIELDS = (
    "time", "host", "interface", "sent_bytes", "received_bytes", "sent_packets", "received_packets",
)  # fmt: skip


def read_table(path: Path) -> list[Row]:
    """Read a CSV file with a heading; return its rows, none if it can't be read.

    Numbers become floats, empty cells `None`. A last line that a killed process left half written is omitted.
    """
    try:
        with path.open(newline="", errors="replace") as file:
            return list(parse_rows(file))
    except (OSError, csv.Error):
        return []


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a mapping of JSON or YAML, as the suffix says; an empty one where it is none."""
    try:
        text = path.read_text()
        tree = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def parse_rows(lines: Iterable[str], fields: Sequence[str] | None = None) -> Iterator[Row]:
    """Yield the rows of CSV lines, of which the first is the heading unless `fields` names the columns."""
    for row in csv.DictReader(lines, fields):
        if None not in row.values():
            yield {key: _value(text) for key, text in row.items() if key is not None}


def _value(text: str) -> Any:
    if text == "":
        return None
    try:
        return float(text)
    except ValueError:
        return text


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


def write_table(path: Path, fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the columns `fields` of rows to a CSV file, whole or not at all; `None` is an empty cell."""
    with written_whole(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_text(text)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write, which replaces `path` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

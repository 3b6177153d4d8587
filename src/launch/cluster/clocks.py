"""Compare the clocks of two hosts, and put what one of them has recorded on the other's clock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.run import files
from src.run.tables import write_text

# How often another host's clocks are read.
READINGS = 9
Clocks = tuple[float, float]


@dataclass(frozen=True)
class Offset:
    """Seconds by which another host's clocks are ahead of this one's.

    Attributes:
        wall: of the clock that counts from 1970.
        monotonic: of the clock that counts from the host's start.
        uncertain: how wrong both may be: half of the time in which the quickest answer came.
    """

    wall: float = 0.0
    monotonic: float = 0.0
    uncertain: float = 0.0


def read() -> Clocks:
    """Return the time of this host's two clocks, in seconds."""
    return time.time(), time.perf_counter()


def compare(ask: Callable[[], Clocks]) -> Offset:
    """Return by how much the clocks that `ask` reads are ahead of this host's.

    An answer is taken for the clocks of the middle between question and answer, and of several answers the
    quickest one counts, which can be wrong by half of the time that it took: as in NTP (RFC 5905, sections 8
    and 10).
    """
    readings = []
    for _ in range(READINGS):
        asked, there, answered = read(), ask(), read()
        wall, monotonic = (now - (a + b) / 2 for now, a, b in zip(there, asked, answered, strict=True))
        readings.append((answered[1] - asked[1], wall, monotonic))
    took, wall, monotonic = min(readings)
    return Offset(wall, monotonic, took / 2)


def adjust(out: Path, name: str, offset: Offset) -> None:
    """Put a record or timeline of a rank, which another host has written, on this host's clock.

    Args:
        out: the run's directory.
        name: the path of the file there; other files are left as they are.
        offset: of the other host's clocks.
    """
    path = out / name
    if path.name == files.RECORD:
        record = json.loads(path.read_text())
        for key in ("window", "off_clock"):
            if record.get(key) is not None:
                record[key] = _earlier(record[key], offset.wall)
        write_text(path, json.dumps(record))
    elif path.name == files.TIMELINE:
        rows = [
            [*row[:3], *(each - offset.monotonic for each in row[3:])] for row in json.loads(path.read_text())
        ]
        write_text(path, json.dumps(rows))


def _earlier(moments: Any, seconds: float) -> Any:
    """Return moments, or lists of them, so many seconds earlier."""
    if isinstance(moments, list):
        return [_earlier(each, seconds) for each in moments]
    return moments - seconds

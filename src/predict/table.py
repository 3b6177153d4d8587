"""Read a table of configurations, and write it with predictions beside them."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from src.config.mistakes import ConfigError, nearest
from src.predict.predictions import Prediction
from src.predict.row import REQUIRED, Row
from src.run.tables import write_text

# `exchange` is how gradients are summed in a table that is read, and seconds in one that is written.
READ_EXCHANGE, KEPT_EXCHANGE = "exchange", "exchanged_by"
ADDED = (
    "predicted_seconds",
    "low",
    "high",
    "predicted_memory_bytes",
    "fits",
    "compute",
    "exchange",
    "bubble",
    "other",
    "basis",
    "note",
)


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Read a table; return its columns, and each row's cells by column.

    Raises:
        ConfigError: for a file that isn't one, or lacks columns that are needed.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file, strict=True) if any(cell.strip() for cell in line)]
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no table of comma-separated values: {error}") from error
    if not lines:
        raise ConfigError(f"{path}: is empty; its first line names the columns, {', '.join(REQUIRED)}, ...")
    columns = [cell.strip() for cell in lines[0]]
    if KEPT_EXCHANGE in columns:
        # A table that was written here: what it had of its own stands where it stood.
        columns = [
            {KEPT_EXCHANGE: READ_EXCHANGE, READ_EXCHANGE: "exchange_seconds"}.get(c, c) for c in columns
        ]
    if missing := [name for name in REQUIRED if name not in columns]:
        others = [name for name in columns if name and name not in Row.model_fields]
        meant = [f"{name} (there is {nearest(name, others)})" if others else name for name in missing]
        raise ConfigError(f"{path}: lacks the column{'s' * (len(missing) > 1)} {', '.join(meant)}")
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise ConfigError(f"{path}: has the column {twice} twice")
    rows = []
    for number, cells in enumerate(lines[1:], start=1):
        if len(cells) > len(columns):
            raise ConfigError(
                f"{path}: row {number} has {len(cells)} cells, and there are {len(columns)} columns"
            )
        rows.append(dict(zip(columns, [*cells, *[""] * (len(columns) - len(cells))], strict=True)))
    return columns, rows


def misspelt(columns: Sequence[str]) -> list[str]:
    """Return a line for each column that isn't read, and that has nearly the name of one that is."""
    known = [name for name in Row.model_fields if name not in columns]
    found = []
    for name in columns:
        if name not in Row.model_fields and (like := difflib.get_close_matches(name.lower(), known, 1, 0.8)):
            found.append(f"the column {name} is kept and not read; did you mean {like[0]}?")
    return found


def write(
    path: Path,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    found: Sequence[Prediction | str],
) -> None:
    """Write a table's rows with what was found of each: a prediction, or why there is none."""
    kept = [name for name in columns if name == READ_EXCHANGE or name not in (*ADDED, "exchange_seconds")]
    names = [KEPT_EXCHANGE if name == READ_EXCHANGE else name for name in kept]
    lines = [[*names, *ADDED]]
    for row, prediction in zip(rows, found, strict=True):
        lines.append([*[row[name] for name in kept], *_cells(prediction)])
    with io.StringIO() as text:
        csv.writer(text, lineterminator="\n").writerows(lines)
        write_text(path, text.getvalue())


def _cells(found: Prediction | str) -> list[str]:
    if isinstance(found, str):
        return [*[""] * (len(ADDED) - 1), found]
    parts = found.parts
    seconds = [parts.compute, parts.exchange, parts.bubble, parts.other]
    return [
        *[f"{value:.6g}" for value in (parts.seconds, found.low, found.high)],
        "" if found.held is None else f"{found.held:.0f}",
        "" if found.fits is None else str(found.fits).lower(),
        *[f"{value:.6g}" for value in seconds],
        found.basis,
        found.note,
    ]

"""Make a frame of a study's runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from src.report import repeats, study, tables
from src.report.runs import load

# Units of figures by the last words of their column, the first that fits.
UNITS = {
    "samples_per_second": "samples/s", "seconds_per_epoch": "s/epoch", "seconds": "s", "_ms": "ms",
    "_bytes": "B", "_joules": "J", "_watts": "W", "_mbit": "Mbit/s", "seconds_to_target": "s",
    "_seconds_median": "s", "_seconds_p25": "s", "_seconds_p75": "s",
}  # fmt: skip


def frame_of(folder: Path, per: str) -> pd.DataFrame:
    """Return the frame of a study's folder, with a row for each `configuration` or `run`."""
    if per not in ("configuration", "run"):
        raise ValueError(f"per={per!r}: must be configuration or run")
    if not (folder / "runs").is_dir():
        raise FileNotFoundError(f"{folder}: has no runs/; a study's folder is results/<study>")
    known = study.of_folder(folder)
    rows = study.merged_rows(known, load(known["cells"], folder / "runs"))
    if per == "configuration":
        rows = repeats.summarise(rows)
    columns = list(dict.fromkeys(key for names in tables.COLUMNS.values() for key in names))
    frame = pd.DataFrame([{key: _plain(row.get(key)) for key in columns} for row in rows], columns=columns)
    frame.attrs["study"] = known["name"]
    frame.attrs["units"] = {key: unit for key in columns if (unit := _unit(key)) is not None}
    return frame


def _plain(value: Any) -> Any:
    """Return a value for a frame: an enumeration's word, and no text in place of a missing one."""
    return str(value) if isinstance(value, str) and value else None if value == "" else value


def _unit(column: str) -> str | None:
    return next((unit for end, unit in UNITS.items() if column.endswith(end)), None)

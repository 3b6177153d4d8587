"""Read a study's runs, decide what compares, and show it: tables, verdicts, figures and a page.

from src.report import load
frame = load("results/quick")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame


def load(folder: str | Path, *, per: str = "configuration") -> DataFrame:
    """Return a study as a frame, with the columns of its tables; `docs/metrics.md` says what they mean.

    `attrs["units"]` has the unit of each column that has one, `attrs["study"]` the study's name. A figure
    that wasn't measured is missing.

    Args:
        folder: that of the study, as `results/quick`, with its runs in `runs/`.
        per: `configuration`, a row each with medians over its repetitions, or `run`.

    Raises:
        FileNotFoundError: for a folder without `runs/`.
        ValueError: for another `per`.
    """
    # Imported here because a command that prints a table needs no pandas.
    from src.report.frame import frame_of

    return frame_of(Path(folder), per)

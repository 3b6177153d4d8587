"""Show the cells of a sweep in one table, by the rules by which a study's are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from src.report import repeats, tables
from src.report.runs import labels, load_run
from src.report.views import SWEEP, View, view


def sweep_view(directories: Sequence[Path]) -> View:
    """Return the table of the runs in these directories: throughput, speed-up, score and parity of each."""
    runs = [load_run(folder.name, {}, folder) for folder in directories]
    compared = {"scaling": tables.scaling(runs), "accuracy": tables.accuracy(runs)}
    rows = tables.merged(runs, compared, labels(runs))
    return view(SWEEP, repeats.summarise(rows))

"""Show the cells of a sweep in one table, by the rules by which a study's are compared."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from src.config import choices
from src.report import repeats, tables
from src.report.missing_baseline import DECLARED
from src.report.runs import StudyRun, labels, load_run
from src.report.views import SWEEP, View, view
from src.run import files


def sweep_view(directories: Sequence[Path], overrides: Sequence[Sequence[str]]) -> View:
    """Return the table of the runs in these directories: throughput, speed-up, score and parity of each.

    A run on one device that is in the same folder as they are is a baseline, too.

    Args:
        directories: those of the runs.
        overrides: the words of each, as they were typed.
    """
    # Names of directories in different folders may be the same, and have blanks.
    runs = [
        load_run(str(number), {DECLARED: shlex.join(words)}, folder)
        for number, (folder, words) in enumerate(zip(directories, overrides, strict=True))
    ]
    known = [*runs, *_neighbours(directories, len(runs))]
    compared = {"scaling": tables.scaling(known), "accuracy": tables.accuracy(known)}
    rows = tables.merged(known, compared, labels(known))
    return view(SWEEP, repeats.summarise(rows)[: len(runs)])


def _neighbours(directories: Sequence[Path], number: int) -> list[StudyRun]:
    """Return the other runs on one device, the plain ones and their variants, beside these directories."""
    plain, own = choices.plain_strategies(), {folder.resolve() for folder in directories}
    found: list[StudyRun] = []
    for parent in {folder.resolve().parent for folder in directories}:
        for path in sorted(parent.glob(f"*/{files.METRICS}")):
            if path.parent.resolve() not in own and _strategy(path) in plain:
                found.append(load_run(str(number + len(found)), {}, path.parent))
    return found


def _strategy(metrics: Path) -> str | None:
    try:
        known = json.loads(metrics.read_text())
        return str(known["strategy"])
    except (OSError, ValueError, KeyError, TypeError):
        return None

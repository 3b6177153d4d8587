"""Show the cells of a sweep in one table, by the rules by which a study's are compared."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from src.config import choices
from src.report import comparison, repeats, tables
from src.report.missing_baseline import DECLARED, FLAGS
from src.report.runs import StudyRun, labels, load_run
from src.report.verdict.objective import Objective
from src.report.verdict.verdicts import Verdict, verdicts
from src.report.views import SWEEP, View, view
from src.run import files
from src.run.directory import PARTIAL, REPLACED
from src.run.status import MEASURED
from src.run.tables import read_mapping

# What a run has in common with one that may be its baseline.
ALIKE = ("model", "dataset")


def sweep_result(
    directories: Sequence[Path], overrides: Sequence[Sequence[str]], config_dir: str | None = None
) -> tuple[View, list[Verdict]]:
    """Return the table of the runs in these directories, and what they mean.

    The table has throughput, speed-up, score and parity of each run. A run on one device that is in the same
    folder as they are is a baseline, too, unless a cell is of its configuration.

    Args:
        directories: those of the runs.
        overrides: the words of each, as they were typed.
        config_dir: the folder of the user's own choices.
    """
    flags = {} if config_dir is None else {FLAGS: shlex.join(["--config-dir", config_dir])}
    runs = [
        load_run(name, {DECLARED: shlex.join(words), **flags}, folder)
        for name, folder, words in zip(_names(directories), directories, overrides, strict=True)
    ]
    known = [*runs, *_neighbours(runs)]
    compared = {
        "scaling": tables.scaling(known),
        "accuracy": tables.accuracy(known),
        "utilization": tables.utilization(known),
    }
    rows = tables.merged(known, compared, labels(known))
    own = rows[: len(runs)]
    used = {cell for row in own for cell in (row.get("baseline") or "").split()}
    asked = [*own, *(row for row in rows[len(runs) :] if row["cell"] in used)]
    return view(SWEEP, repeats.summarise(own)), verdicts(asked, Objective(), {})


def _names(directories: Sequence[Path]) -> list[str]:
    """Return a word for each directory; those in different folders may have the same name."""
    plain = [folder.name.replace(" ", "-") for folder in directories]
    if len(set(plain)) == len(plain):
        return plain
    return [f"{name}-{number}" for number, name in enumerate(plain, 1)]


def _neighbours(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """Return the runs on one device beside these: the newest of each configuration that none of these has."""
    plain, own = choices.plain_strategies(), {run.directory.resolve() for run in runs}
    wanted = [{run.get(key) for run in runs} for key in ALIKE]
    found: dict[Path, float] = {}
    for parent in {folder.parent for folder in own}:
        for path in parent.glob(f"*/{files.METRICS}"):
            folder, metrics = path.parent, read_mapping(path)
            if folder.resolve() in own or folder.name.endswith((PARTIAL, REPLACED)):
                continue
            alike = all(metrics.get(key) in values for key, values in zip(ALIKE, wanted, strict=True))
            if alike and metrics.get("strategy") in plain and metrics.get("status") in MEASURED:
                found[folder] = path.stat().st_mtime
    newest = sorted(found, key=lambda folder: found[folder], reverse=True)
    # They ran at another time: nothing that disturbed them has disturbed the sweep's cells alike.
    read = [
        load_run(f"beside/{number}", {"repetition": -1 - number}, folder)
        for number, folder in enumerate(newest)
    ]
    kept: dict[str, StudyRun] = {}
    known = {comparison.configuration(run) for run in runs}
    for run in read:
        if (configuration := comparison.configuration(run)) not in known:
            kept.setdefault(configuration, run)
    return list(kept.values())

"""Say what a study's runs mean: how to train each of its models, what that gives and costs, what isn't known.

The stage `aggregate` says the same, for the study's own aim, and keeps it in tables/verdict.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from src.report import study as studies
from src.report.console import print_verdicts
from src.report.verdict.objective import objective
from src.report.verdict.verdicts import as_json as verdict_as_json
from src.report.verdict.verdicts import verdicts


def recommend(words: Sequence[str], params: Path, study_dir: Path | None, *, as_json: bool) -> int:
    """Print the verdicts of a study; return 0, or 1 where no run was measured.

    Args:
        words: overrides of the study's aim, limits and prices.
        params: the file that holds the study.
        study_dir: where its runs are; by default results/<study>.
        as_json: whether what is printed is for programs.

    Raises:
        ConfigError: for a mistake in the words or the study.
    """
    study = studies.read(params)
    wanted = objective(study, words)
    directory = study_dir or studies.directory(study)
    rows = studies.merged_rows(study, studies.load(study, directory))
    found = verdicts(rows, wanted, study)
    if as_json:
        print(json.dumps([verdict_as_json(verdict) for verdict in found], indent=2))
    elif not found:
        print(
            f"nothing that trains was measured in {directory}; make run, or make study NAME={study['name']}, "
            "does that"
        )
    else:
        print_verdicts(found)
    return 0 if found else 1

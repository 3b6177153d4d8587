"""Write down the commands that repeat a study."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from src.report.runs import StudyRun


@dataclass(frozen=True)
class Commands:
    """The commands that repeat a study.

    Attributes:
        whole: those of the study, in their order.
        cells: of each cell its name and the command that trains it alone.
        uncommitted: whether a run was measured with changes that no commit has.
    """

    whole: list[str]
    cells: list[tuple[str, str]]
    uncommitted: bool


def commands(study: Mapping[str, Any], runs: Sequence[StudyRun]) -> Commands:
    """Return the commands for `study`, from params.yaml, and for each of its runs that says what it was."""
    commits = dict.fromkeys(
        str(run.environment["git_commit"]) for run in runs if run.environment.get("git_commit")
    )
    clean = list(dict.fromkeys(commit.removesuffix("-dirty") for commit in commits))
    repeat = study.get("repeat") or 1
    whole = [f"git checkout {clean[0]}"] if len(clean) == 1 else []
    whole.append("make install")
    whole.append(
        study.get("again")
        or f"make study NAME={shlex.quote(str(study.get('name')))}{f' REPEAT={repeat}' if repeat > 1 else ''}"
    )
    cells = [
        (run.cell, f"python -m src.train {run.declared['overrides']}")
        for run in runs
        if run.declared.get("overrides")
    ]
    return Commands(whole, cells, any(commit.endswith("-dirty") for commit in commits))

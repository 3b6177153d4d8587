"""Say which run a speed-up lacks: the line of a study's grid, or the command, that adds its baseline."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from src.config import choices
from src.config.schema import typed
from src.report.comparison import is_single
from src.report.runs import StudyRun
from src.run.status import MEASURED

# Keys of a run that aren't those of the run on one device with which it is compared.
OF_THE_RUN = ("strategy", "workers", "microbatches", "scaling", "batch_shares", "out", "overwrite")
DECLARED = "overrides"


def notes(wanting: Sequence[StudyRun], runs: Sequence[StudyRun]) -> list[str]:
    """Return sentences on what to add for the speed-ups of runs that are `wanting`; none where nothing helps.

    A run on one device that is among the `runs` and has failed isn't to be added once more.
    """
    failed = {run.get("framework") for run in runs if is_single(run) and run.status not in MEASURED}
    lines = [line_to_add(run) for run in wanting if run.get("framework") not in failed]
    found = list(dict.fromkeys(line for line in lines if line is not None))
    if not found:
        return []
    to_study = found[0].startswith("- ")
    head = "add to the study's grid" if to_study else "run this, and the sweep once more"
    return [f"For a speed-up, {head}:", *found]


def line_to_add(run: StudyRun) -> str | None:
    """Return what gives a run a baseline: a block of the study's grid, or a command of its own.

    It has the overrides of the run, of one device alone. Without these, as in tables of runs that were read
    from their directories alone, there is none.
    """
    words, framework = run.declared.get(DECLARED), run.get("framework")
    names = [name for name, file in choices.plain_strategies().items() if file["framework"] == framework]
    if not isinstance(words, str) or not names:
        return None
    strategy = run.config.get("strategy") or {}
    options = {f"strategy.{key}": typed(value) for key, value in (strategy.get("baseline") or {}).items()}
    # A leading `+` adds a key that has no default.
    given = dict(word.lstrip("+").split("=", 1) for word in shlex.split(words) if "=" in word)
    kept = {
        key: value
        for key, value in given.items()
        if key not in OF_THE_RUN and not key.startswith(("strategy.", "tracking.", "hydra", "~"))
    }
    chosen = {"strategy": names[0], **options, **kept}
    if "configuration" in run.declared:
        return f"- {{{', '.join(f'{key}: {value}' for key, value in chosen.items())}}}"
    return "python -m src.train " + shlex.join(f"{key}={value}" for key, value in chosen.items())

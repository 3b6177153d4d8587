"""Say which run a speed-up lacks: the line of a study's grid, or the command, that adds its baseline."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from src.config import choices
from src.config.schema import typed
from src.report.comparison import is_single, same_work
from src.report.runs import StudyRun
from src.run.status import MEASURED

# Keys of a run that aren't those of the run on one device with which it is compared.
OF_THE_RUN = (
    "strategy", "workers", "microbatches", "scaling", "batch_shares", "batchnorm", "out", "overwrite",
    "hardware.hosts", "hardware.devices",
)  # fmt: skip
# The overrides of a run, among what is declared of it, and the flags of its command.
DECLARED, FLAGS = "overrides", "flags"


def notes(wanting: Sequence[StudyRun], runs: Sequence[StudyRun]) -> list[str]:
    """Return sentences on what to add for the speed-ups of runs that are `wanting`; none where nothing helps.

    A run on one device that is among the `runs` and has failed isn't to be added once more.
    """
    failed = [run for run in runs if is_single(run) and run.status not in MEASURED]
    lines = [line_to_add(run) for run in wanting if not any(same_work(run, other) for other in failed)]
    found = list(dict.fromkeys(line for line in lines if line is not None))
    if not found:
        return []
    to_study = found[0].startswith("- ")
    head = "add to the study's grid" if to_study else "run this, and the sweep once more"
    return [f"For a speed-up, {head}:", *found]


def line_to_add(run: StudyRun) -> str | None:
    """Return what gives a run a baseline: a block of the study's grid, or a command of its own.

    It has the overrides of the run, of one device alone. Without these, as in tables of runs that were read
    from their directories alone, there is none, nor for devices of different speeds.
    """
    kept, framework = kept_overrides(run), run.get("framework")
    names = [name for name, file in choices.plain_strategies().items() if file["framework"] == framework]
    if kept is None or not names or run.get("hardware.speeds"):
        return None
    strategy = run.config.get("strategy") or {}
    options = {f"strategy.{key}": typed(value) for key, value in (strategy.get("baseline") or {}).items()}
    return line_beside(run, {"strategy": names[0], **options, **kept})


def line_beside(run: StudyRun, chosen: Mapping[str, str]) -> str:
    """Return the block of a grid, or the command, that adds a run with these overrides beside another one."""
    if "configuration" in run.declared:
        return f"- {{{', '.join(f'{key}: {_in_yaml(value)}' for key, value in chosen.items())}}}"
    words = dict(chosen)
    if any(word.startswith("out=") for word in shlex.split(run.declared[DECLARED])):
        # Beside the run, where the sweep looks for it.
        digits = hashlib.sha256(repr(words).encode()).hexdigest()[:6]
        words["out"] = str(Path(str(run.config.get("out"))).parent / f"{words['strategy']}-{digits}")
    flags = [str(run.declared[FLAGS])] if FLAGS in run.declared else []
    return " ".join(["python -m src.train", *flags, shlex.join(f"{k}={v}" for k, v in words.items())])


def kept_overrides(run: StudyRun) -> dict[str, str] | None:
    """Return the overrides of a run that one of another strategy has, too; `None` where they aren't known."""
    words = run.declared.get(DECLARED)
    if not isinstance(words, str):
        return None
    # A leading `+` adds a key that has no default.
    given = dict(word.split("=", 1) for word in shlex.split(words) if "=" in word)
    return {
        key: value
        for key, value in given.items()
        if key not in OF_THE_RUN and not key.lstrip("+").startswith(("strategy.", "tracking.", "hydra"))
    }


def _in_yaml(value: str) -> str:
    """Return a value as it is one in a grid, where a list would be several."""
    return f"'{value}'" if value.startswith(("[", "{")) else value

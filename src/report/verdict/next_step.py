"""Say what a study hasn't tried, and which one command, or block of its grid, would tell most."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from src.config import choices
from src.report.missing_baseline import DECLARED, kept_overrides, line_beside, line_to_add
from src.report.repeats import Ratio
from src.report.verdict.answer import Answer
from src.report.verdict.candidates import Candidate
from src.report.verdict.objective import ACCURACY
from src.run.status import Status

REPEAT = 3
# More repetitions than these aren't asked for: such a difference matters to nobody.
MOST_REPETITIONS = 20
SHOWN = 4


def next_step(answers: Sequence[Answer], study: Mapping[str, Any], lost: int = 0) -> str:
    """Return a clause on what wasn't tried and how to try what tells most; empty where nothing is known.

    First comes a missing baseline, then repetitions, without which nothing is known, then as many repetitions
    as tell apart what is tied, then more of the machine's devices, then strategies that the study leaves out.
    `lost` counts the study's cells that failed or are missing.
    """
    known = [answer for answer in answers if answer.chosen is not None]
    if not known or not any(each.candidate.measured for answer in known for each in answer.compared):
        return ""
    if (line := _lacks_baseline(known)) is not None and lost:
        return "what failed or is missing would tell most: `make retry`"
    if line is not None:
        return f"one device alone would tell most: {line}"
    compared = [each.candidate for answer in known for each in answer.compared]
    skipped = any(Status.SKIPPED in candidate.statuses for candidate in compared)
    if skipped and sum(bool(candidate.measured) for candidate in compared) == 1:
        return _on_cores(compared, study)
    learning = known[0].aim.name == ACCURACY
    blocks = [max(len(each.candidate.figures(answer.aim)) for each in answer.compared) for answer in known]
    if min(blocks) < REPEAT:
        return f"would tell most: {_again(study, REPEAT, seeds=learning)}"
    if not learning and (times := _repetitions(known)) is not None:
        return f"as many repetitions as may tell these apart: {_again(study, times)}"
    # The study asks for more than the machine has: further cells would be skipped, too.
    return "" if skipped else _more_devices(known) or _other_strategy(known)


def _again(study: Mapping[str, Any], times: int, *, seeds: bool = False) -> str:
    """Return how to measure each configuration so often: again, or with other seeds."""
    listed = ",".join(map(str, range(times)))
    if study.get("name") is None:
        return f"each cell with several seeds, `seed={listed}` before all else, which takes turns"
    if study.get("again") is not None:
        return f"repetitions on each machine, `repeat: {times}` in its study"
    if seeds:
        return f"several seeds in the study's grid, `seed: [{listed}]`"
    return f"repetitions, `make study NAME={study['name']} REPEAT={times}`"


def _lacks_baseline(answers: Sequence[Answer]) -> str | None:
    """Return the block of the grid that gives a configuration something to be compared with."""
    for answer in answers:
        if not any(each.candidate.alone for each in answer.compared) and not any(
            each.reference for each in answer.compared
        ):
            for each in answer.compared:
                if (line := line_to_add(each.candidate.run)) is not None:
                    return _where(line)
    return None


def _repetitions(answers: Sequence[Answer]) -> int | None:
    """Return how many repetitions would tell a tied configuration from the chosen one, if the ratio holds.

    The interval's width falls as the root of their number, at least.
    """
    found = []
    for answer in answers:
        assert answer.chosen is not None
        for each, ratio in answer.tied:
            times = _needed(ratio, len(each.candidate.figures(answer.aim)))
            if times is not None and times <= MOST_REPETITIONS:
                found.append(times)
    return min(found, default=None)


def _needed(ratio: Ratio | None, repetitions: int) -> int | None:
    if ratio is None or ratio.interval is None:
        return None
    low, high = (math.log(bound) for bound in ratio.interval)
    centre, half = abs(low + high) / 2, (high - low) / 2
    return None if centre == 0 else max(repetitions + 1, math.ceil(repetitions * (half / centre) ** 2))


def _more_devices(answers: Sequence[Answer]) -> str:
    """Return a clause on devices of this machine that nothing has used; empty where there are none."""
    compared = [each.candidate for answer in answers for each in answer.compared]
    most = max(candidate.devices for candidate in compared)
    several = [candidate for candidate in _chosen(answers) if candidate.devices > 1]
    there = min((_devices_there(candidate) for candidate in several), default=0)
    if there <= most or not several:
        return ""
    line = _wider(several[0], there)
    said = f"of this machine's {there} devices no more than {most} were tried"
    return line and f"{said}; that would tell most: {line}"


def _devices_there(candidate: Candidate) -> int:
    """Return how many devices of its kind the machine had on which a configuration ran."""
    seen = candidate.run.environment
    if candidate.run.get("hardware.device") == "gpu":
        return len(seen.get("gpus") or [])
    cores = len((seen.get("processors") or {}).get("usable") or [])
    return int(cores // (candidate.run.get("hardware.cores_per_device") or 1))


def _on_cores(candidates: Sequence[Candidate], study: Mapping[str, Any]) -> str:
    """Return how to repeat a study on a machine's cores that asks for more GPUs than there are."""
    run = next(each.run for each in candidates if each.measured)
    cores = len((run.environment.get("processors") or {}).get("usable") or [])
    needed = max(each.devices for each in candidates) * (run.get("hardware.cores_per_device") or 1)
    if run.get("hardware.device") != "gpu" or study.get("name") is None or cores < needed:
        return ""
    return "the whole study on this machine's cores: `CUDA_VISIBLE_DEVICES= dvc repro -f`"


def _other_strategy(answers: Sequence[Answer]) -> str:
    """Return a clause on the framework's strategies that the study leaves out.

    First come those that learn as one device does, and of these those that work with any model.
    """
    compared = [each.candidate for answer in answers for each in answer.compared]
    run = compared[0].run
    tried = {candidate.first.get("strategy") for candidate in compared}
    kind = "gpu" if run.get("hardware.device") == "gpu" else "cpu"
    files = {
        name: file
        for name, file in choices.strategies().items()
        if file["framework"] == run.get("framework") and kind in file["supports"]["devices"]
    }
    left = [
        name
        for name, file in files.items()
        if name not in tried and not {"reference", "capacity"} & file.keys()
    ]
    left.sort(
        key=lambda name: (
            files[name].get("synchronous") is not True,
            not files[name]["supports"]["shares_batch"],
        )
    )
    if not left:
        return ""
    several = max(compared, key=lambda candidate: candidate.devices)
    line = _line(several, left[0], several.devices if several.devices > 1 else None)
    rest = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    said = f"not tried: {', '.join(left[:SHOWN])}{rest}"
    return f"{said}; the first of them by {line}" if line else said


def _wider(candidate: Candidate, devices: int) -> str:
    """Return how to add a configuration on as many of so many devices as divide its batch; else empty."""
    words = candidate.run.declared.get(DECLARED)
    parts = candidate.first.get("microbatches") or 1
    batch = candidate.first.get("batch") or 1
    weak = candidate.first.get("scaling") == "weak"
    possible = [n for n in range(candidate.devices + 1, devices + 1) if weak or batch % (n * parts) == 0]
    if not isinstance(words, str) or not possible or candidate.run.get("hardware.speeds"):
        return ""
    given = dict(word.split("=", 1) for word in shlex.split(words) if "=" in word)
    own = ("workers", "batch_shares", "out", "hardware.devices", "strategy.partition", "strategy.speeds")
    kept = {key: value for key, value in given.items() if key not in own}
    return _where(line_beside(candidate.run, {**kept, "workers": str(possible[-1])}))


def _line(candidate: Candidate, strategy: str, workers: int | None) -> str:
    """Return how to add a configuration with another strategy, or more workers; empty if that isn't known."""
    kept = kept_overrides(candidate.run)
    if kept is None:
        return ""
    size = {"workers": str(workers)} if workers is not None else {}
    return _where(line_beside(candidate.run, {"strategy": strategy, **size, **kept}))


def _where(line: str) -> str:
    """Return a block of a grid, or a command, with a word on where it belongs."""
    return f"`{line}` in the study's grid" if line.startswith("- ") else f"`{line}`"


def _chosen(answers: Sequence[Answer]) -> list[Candidate]:
    return [answer.chosen.candidate for answer in answers if answer.chosen is not None]

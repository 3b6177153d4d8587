"""Say why a configuration can't be chosen: by what it did, by a limit, or for want of the aim's figure."""

from __future__ import annotations

from src.report.verdict.candidates import Candidate
from src.report.verdict.objective import Objective
from src.report.views import show
from src.run.status import Status

GIB = 2**30
# Ends of a run after which its configuration isn't chosen, however its other runs ended.
FATAL = {Status.OUT_OF_MEMORY: "ran out of memory", Status.DIVERGED: "diverged"}


def unfit(candidate: Candidate, objective: Objective) -> str:
    """Return why a configuration can't be chosen, as a clause that follows its name; empty where it can."""
    for status, words in FATAL.items():
        if status in candidate.statuses:
            return words
    if not candidate.measured:
        return str(max(candidate.statuses, key=list(Status).index))
    if "BROKEN" in candidate.known("parity"):
        gap = max(candidate.known("parity_gap"))
        off = show(gap, "gap")
        return f"computes something else: its first losses are {off} off (parity BROKEN; src.audit says why)"
    return _beyond_limits(candidate, objective) or _without_figure(candidate, objective)


def _beyond_limits(candidate: Candidate, objective: Objective) -> str:
    """Return which limit a configuration is beyond, or may be: the largest of its runs counts."""
    if objective.memory_gib is not None:
        memory = max(candidate.known("memory_peak_bytes"), default=None)
        if memory is None:
            return f"has no known memory for limit.memory_gib={objective.memory_gib:g}"
        if memory > objective.memory_gib * GIB:
            return f"needs {show(memory, 'bytes')} a device, above limit.memory_gib={objective.memory_gib:g}"
    if objective.hours is not None:
        seconds = max(candidate.known("train_seconds"), default=None)
        if seconds is None:
            return f"has no known training time for limit.hours={objective.hours:g}"
        if seconds > objective.hours * 3600:
            return f"trains for {seconds / 3600:.3g} h, above limit.hours={objective.hours:g}"
        if Status.TIME_LIMIT in candidate.statuses:
            return f"was stopped after {seconds / 3600:.3g} h, and may take longer than limit.hours allows"
    return ""


def _without_figure(candidate: Candidate, objective: Objective) -> str:
    """Return why a configuration has no figure of the aim that compares."""
    aim = objective.aim
    if aim.whole and Status.TIME_LIMIT in candidate.statuses:
        return "was stopped by max_minutes"
    if aim.whole and any(row["run"].config.get("stop_at_target") for row in candidate.measured):
        return "was to stop at its target"
    count, known = len(candidate.measured), len(candidate.known(aim.metric))
    if aim.metric == "seconds_to_target":
        if candidate.run.get("target_accuracy") is None:
            return "has no target_accuracy"
        if known < count:
            return f"reached its target in {known} of {count} run{'s' if count > 1 else ''}"
    return "" if candidate.figures(aim) else f"has no {aim.needs}"

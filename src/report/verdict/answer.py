"""Choose one of the configurations of a question, and say how sure that is.

A configuration is called better only where the 95 % interval of its ratio to what it is compared with
excludes 1. Of those that nothing tells apart the one with the fewest devices is chosen: more cost more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from src.report import repeats
from src.report.repeats import Rates, Ratio
from src.report.verdict.candidates import Candidate, Question
from src.report.verdict.objective import ACCURACY, Aim, Objective
from src.report.views import show
from src.run.status import Status

GIB = 2**30
# So begins the reason of a configuration that has no figure of the aim.
NO = "has no "
# Ends of a run after which its configuration isn't chosen, however its other runs ended.
FATAL = {Status.OUT_OF_MEMORY: "ran out of memory", Status.DIVERGED: "diverged"}


class Word(Enum):
    """How a configuration stands to another one."""

    BETTER = "better"
    WORSE = "worse"
    EQUAL = "as good as known"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Compared:
    """A configuration beside the one over which its figure stands.

    Attributes:
        candidate: the configuration.
        reference: the other one; `None` where there is none, or it is the configuration itself.
        ratio: its figure over the other's.
        word: what the ratio's interval allows to say.
        unfit: why it can't be chosen, in words; empty where it can.
    """

    candidate: Candidate
    reference: Candidate | None
    ratio: Ratio | None
    word: Word
    unfit: str


@dataclass(frozen=True)
class Answer:
    """The choice among the configurations of a question.

    Attributes:
        question: what was asked.
        aim: what is to be as large or as small as can be.
        chosen: the configuration; `None` where none can be chosen.
        tied: those that nothing tells from the best one, each with its figure over the chosen one's.
        runner_up: where nothing on one device can be compared with, the best of those that are worse than the
            choice, with the choice's figure over its.
        repeated: whether repetitions tell anything of a difference, or nothing is left to compare.
        compared: all configurations.
    """

    question: Question
    aim: Aim
    chosen: Compared | None
    tied: tuple[tuple[Compared, Ratio | None], ...]
    runner_up: tuple[Compared, Ratio] | None
    repeated: bool
    compared: tuple[Compared, ...]


def answer(question: Question, objective: Objective) -> Answer:
    """Choose among the configurations of a question.

    The leader has the best figure among those on one device and those that are better than what they are
    compared with. All that aren't told from it are as good, as far as known.
    """
    aim = objective.aim
    pool = question.pool(aim)
    compared = [_compared(each, question, objective, pool) for each in question.candidates]
    fit = [each for each in compared if not each.unfit]
    able = [each for each in fit if each.candidate.alone or each.word is Word.BETTER] or fit
    if not able:
        return Answer(question, aim, None, (), None, False, tuple(compared))
    order = sorted(able, key=lambda each: each.candidate.middle(aim.metric) or 0, reverse=aim.more)
    leader = order[0]
    equal = [
        each for each in fit if each is leader or _word(_between(each, leader, aim, pool), aim) is Word.EQUAL
    ]
    chosen = min((each for each in order if each in equal), key=lambda each: each.candidate.devices)
    tied = [(each, _between(each, chosen, aim, pool)) for each in equal if each is not chosen]
    behind = [each for each in fit if each not in equal]
    ratios = [(each, ratio) for each in behind if (ratio := _between(chosen, each, aim, pool)) is not None]
    ratios.sort(key=lambda pair: pair[1].value, reverse=not aim.more)
    known = [each.ratio for each in fit] + [ratio for _, ratio in (*tied, *ratios)]
    repeated = len(fit) == 1 or any(ratio is not None and ratio.interval for ratio in known)
    runner_up = ratios[0] if ratios and chosen.reference is None else None
    return Answer(question, aim, chosen, tuple(tied), runner_up, repeated, tuple(compared))


def _compared(
    candidate: Candidate, question: Question, objective: Objective, pool: Sequence[Rates]
) -> Compared:
    aim, reference = objective.aim, question.reference(candidate)
    unfit = _unfit(candidate, objective)
    if reference is None or reference.cells == candidate.cells:
        return Compared(candidate, None, None, Word.UNKNOWN, unfit)
    figures = reference.figures(aim)
    # A study may name a baseline on other hardware, which isn't among the question's configurations.
    ratio = _ratio(candidate.figures(aim), figures, pool if figures in pool else [*pool, figures], aim)
    return Compared(candidate, reference, ratio, _word(ratio, aim), unfit)


def _between(one: Compared, other: Compared, aim: Aim, pool: Sequence[Rates]) -> Ratio | None:
    return _ratio(one.candidate.figures(aim), other.candidate.figures(aim), pool, aim)


def _ratio(of: Rates, to: Rates, pool: Sequence[Rates], aim: Aim) -> Ratio | None:
    return (repeats.difference if aim.name == ACCURACY else repeats.ratio)(of, to, pool)


def _word(ratio: Ratio | None, aim: Aim) -> Word:
    """Return what the interval of a ratio, or of a difference, allows to say."""
    if ratio is None or ratio.interval is None:
        return Word.UNKNOWN
    low, high = ratio.interval
    same = 0.0 if aim.name == ACCURACY else 1.0
    if low > same or high < same:
        return Word.BETTER if (low > same) == aim.more else Word.WORSE
    return Word.EQUAL


def _unfit(candidate: Candidate, objective: Objective) -> str:
    """Return why a configuration can't be chosen; empty where it can."""
    aim, memory = objective.aim, candidate.middle("memory_peak_bytes")
    for status, words in FATAL.items():
        if status in candidate.statuses:
            return words
    if not candidate.measured:
        return str(max(candidate.statuses, key=list(Status).index))
    if candidate.first.get("parity") == "BROKEN" or "BROKEN" in candidate.known("parity"):
        gap = max(candidate.known("parity_gap"))
        return f"computes something else: its first losses are {show(gap, 'gap')} off (parity BROKEN)"
    if objective.memory_gib is not None:
        if memory is None:
            return f"has no known memory for limit.memory_gib={objective.memory_gib:g}"
        if memory > objective.memory_gib * GIB:
            return f"needs {show(memory, 'bytes')} a device, above limit.memory_gib={objective.memory_gib:g}"
    if objective.hours is not None and (candidate.middle("train_seconds") or 0) > objective.hours * 3600:
        hours = (candidate.middle("train_seconds") or 0) / 3600
        return f"trains for {hours:.3g} h, above limit.hours={objective.hours:g}"
    if aim.whole and Status.TIME_LIMIT in candidate.statuses:
        return "was stopped by max_minutes"
    return "" if candidate.figures(aim) else f"{NO}{aim.needs}"

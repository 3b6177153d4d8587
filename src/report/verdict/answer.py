"""Choose one of the configurations of a question, and say how sure that is.

A configuration is called better only where the interval of its ratio to what it is compared with excludes 1.
As the best of several is chosen, the intervals of all pairs hold at once with 95 %. Of those that nothing
tells apart the one with the fewest devices is chosen: more cost more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from src.report import comparison, repeats
from src.report.repeats import Rates, Ratio
from src.report.verdict.candidates import Candidate, Question
from src.report.verdict.fitness import unfit
from src.report.verdict.objective import ACCURACY, THROUGHPUT, Aim, Objective

# A ratio nearer to 1 matters to nobody, however little the runs scatter.
MATTERS = 0.01


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

    The leader has the best figure among what others are compared with and those that are better than that; if
    another one is better than it, in the runs that they have in common, that one leads. All that aren't told
    from the leader are as good, as far as known.
    """
    aim = question.directed(objective.aim)
    pool = question.pool(aim)
    fitness = {each.cells[0]: unfit(each, objective) for each in question.candidates}
    best = _best_alone(question, fitness, aim)
    compared = [_compared(each, question, best, fitness, aim, pool) for each in question.candidates]
    fit = [each for each in compared if not each.unfit]
    plain = [each for each in fit if each.candidate.alone and each.reference is None]
    able = [*plain, *(each for each in fit if each.word is Word.BETTER)] or fit
    if not able:
        return Answer(question, aim, None, (), None, False, tuple(compared))
    order = sorted(able, key=lambda each: each.candidate.middle(aim.metric) or 0, reverse=aim.more)
    leader = order[0]
    for each in order[1:]:
        if _word(_between(each, leader, aim, pool), aim) is Word.BETTER:
            leader = each
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


def _best_alone(question: Question, fitness: Mapping[str, str], aim: Aim) -> Candidate | None:
    """Return the best configuration on one device that can be chosen; of one batch the plain one."""
    alone = [each for each in question.candidates if each.alone and not fitness[each.cells[0]]]
    if aim.at_batch:
        alone = [each for each in alone if comparison.is_plain(each.run)]
    choose = max if aim.more else min
    return choose(alone, key=lambda each: each.middle(aim.metric) or 0.0, default=None)


def _compared(
    candidate: Candidate,
    question: Question,
    best: Candidate | None,
    fitness: Mapping[str, str],
    aim: Aim,
    pool: Sequence[Rates],
) -> Compared:
    """Compare a configuration with the baseline of its speed-up, or with the best on one device."""
    reference = question.baseline(candidate) if aim.name == THROUGHPUT else best
    reason = fitness[candidate.cells[0]]
    if reference is None or reference.cells == candidate.cells:
        return Compared(candidate, None, None, Word.UNKNOWN, reason)
    figures = reference.figures(aim)
    # A study may name a baseline on other hardware, which isn't among the question's configurations.
    ratio = hold_against(candidate.figures(aim), figures, pool if figures in pool else [*pool, figures], aim)
    return Compared(candidate, reference, ratio, _word(ratio, aim), reason)


def _between(one: Compared, other: Compared, aim: Aim, pool: Sequence[Rates]) -> Ratio | None:
    return hold_against(one.candidate.figures(aim), other.candidate.figures(aim), pool, aim)


def hold_against(of: Rates, to: Rates, pool: Sequence[Rates], aim: Aim) -> Ratio | None:
    """Return the aim's figure of a configuration over another's, with the interval among all of the pool."""
    return (repeats.difference if aim.name == ACCURACY else repeats.ratio)(of, to, pool, max(2, len(pool)))


def _word(ratio: Ratio | None, aim: Aim) -> Word:
    """Return what the interval of a ratio, or of a difference, allows to say."""
    if ratio is None or ratio.interval is None:
        return Word.UNKNOWN
    low, high = ratio.interval
    same = 0.0 if aim.name == ACCURACY else 1.0
    if aim.name != ACCURACY and abs(ratio.value - same) < MATTERS:
        return Word.EQUAL
    if low > same or high < same:
        return Word.BETTER if (low > same) == aim.more else Word.WORSE
    return Word.EQUAL

"""Find the Pareto front of cost and time: configurations that no other one beats in both."""

from __future__ import annotations

from collections.abc import Sequence

from src.report.pareto import pareto
from src.report.verdict import words
from src.report.verdict.answer import Answer
from src.report.verdict.candidates import Candidate
from src.report.verdict.objective import COST, Objective
from src.report.verdict.prose import Sentence
from src.report.views import show


def front(answers: Sequence[Answer], objective: Objective) -> list[Sentence]:
    """Return a sentence on the front of cost and training time, the cheapest first.

    There is none where devices have no prices, or an aim compares runs of other lengths.
    """
    if objective.prices is None or not objective.aim.whole:
        return []
    known = {
        id(each.candidate): (each.candidate, answer.question)
        for answer in answers
        for each in answer.compared
        if not each.unfit and None not in _point(each.candidate)
    }
    best = pareto(_point(candidate) for candidate, _ in known.values())
    on_front = (candidate for candidate, _ in known.values() if _point(candidate) in best)
    efficient = sorted(on_front, key=_point)
    shown = [
        f"{words.name(*known[id(each)])} {each.middle(COST):.3g} {objective.prices.currency} in "
        f"{show(each.middle('train_seconds'), 'seconds')}"
        for each in efficient
    ]
    if not shown:
        return []
    prices = objective.prices
    text = f"Cost and time, of which no other configuration has less of both: {', '.join(shown)} "
    text += f"(prices of {prices.date}, {prices.source})."
    return [Sentence(text, tuple(cell for each in efficient for cell in each.cells))]


def _point(candidate: Candidate) -> tuple[float, float]:
    return candidate.middle(COST), candidate.middle("train_seconds")  # type: ignore[return-value]

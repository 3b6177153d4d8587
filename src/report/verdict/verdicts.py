"""Make the verdicts of a study: one for each model and data, framework and hardware that it measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from src.report.runs import Row
from src.report.verdict.answer import Answer, Compared, Word, answer
from src.report.verdict.candidates import questions
from src.report.verdict.front import front
from src.report.verdict.objective import AIMS, COST, Objective
from src.report.verdict.prose import Sentence, headline, sentences
from src.run.status import Status


@dataclass(frozen=True)
class Verdict:
    """The answer of a study's runs for one subject.

    Attributes:
        subject: what is trained, as `cnn on mnist`.
        aim: the name of the aim.
        choice: the choice in a few words.
        sentences: two to five, each with the cells on which it stands.
        answers: the choices behind it, one for each batch where only runs of one batch compare.
    """

    subject: str
    aim: str
    choice: str
    sentences: tuple[Sentence, ...]
    answers: tuple[Answer, ...]

    @property
    def title(self) -> str:
        """Return the subject and the choice."""
        return f"{self.subject}: {self.choice}"


def verdicts(rows: Sequence[Row], objective: Objective, study: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts of a study's merged rows, one row a run.

    Of the `study`, the contents of that key in params.yaml, the name is read.
    """
    lost = sum(row["status"] in (Status.FAILED, Status.MISSING) for row in rows)
    subjects: dict[str, list[Answer]] = {}
    for question in questions(rows, objective):
        subjects.setdefault(question.subject, []).append(answer(question, objective))
    return [
        Verdict(
            subject,
            objective.aim.name,
            headline(answers),
            (*sentences(answers, objective, study, lost), *front(answers, objective)),
            tuple(answers),
        )
        for subject, answers in subjects.items()
    ]


def other_aims(rows: Sequence[Row], objective: Objective, study: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts by other aims, within the same limits, where something can be chosen by them."""
    others = [replace(objective, aim=aim) for aim in AIMS.values() if aim != objective.aim]
    found = [
        verdict
        for other in others
        if other.aim.name != COST or other.prices is not None
        for verdict in verdicts(rows, other, study)
    ]
    return [verdict for verdict in found if any(answer.chosen for answer in verdict.answers)]


def word_by_cell(found: Sequence[Verdict]) -> dict[str, str]:
    """Return what the verdicts say of each cell: `chosen`, `as good as known`, `slower than single`, ..."""
    said: dict[str, str] = {}
    for verdict in found:
        for each in verdict.answers:
            tied = [known for known, _ in each.tied]
            for known in each.compared:
                word = (
                    known.unfit
                    or ("undecided" if not each.repeated else "")
                    or ("chosen" if known is each.chosen else "")
                    or ("as good as known" if known in tied else "")
                    or _against(known, each)
                )
                said |= dict.fromkeys(known.candidate.cells, word)
    return said


def _against(known: Compared, answer: Answer) -> str:
    """Return the word on a configuration that isn't chosen, by what it is compared with."""
    if known.word is Word.WORSE and known.reference is not None:
        return f"{answer.aim.worse} than {known.reference.first['label']}"
    return "not chosen"


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict for programs: its sentences, and each configuration's figure and ratio."""
    return {
        "subject": verdict.subject,
        "aim": verdict.aim,
        "choice": verdict.choice,
        "sentences": [asdict(sentence) for sentence in verdict.sentences],
        "answers": [_answer(each) for each in verdict.answers],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    tied = [each for each, _ in answer.tied]
    return {
        "batch": answer.question.batch,
        "chosen": list(answer.chosen.candidate.cells) if answer.chosen else None,
        "capacities": [
            {"cells": list(each.cells), "devices": each.devices, "speedup": each.middle("speedup")}
            for each in answer.question.capacities
        ],
        "configurations": [
            {
                "cells": list(each.candidate.cells),
                "label": each.candidate.first["label"],
                "devices": each.candidate.devices,
                "batch": each.candidate.first.get("batch"),
                "metric": answer.aim.metric,
                "figure": each.candidate.middle(answer.aim.metric),
                "reference": list(each.reference.cells) if each.reference else None,
                "ratio": each.ratio.value if each.ratio else None,
                "interval": list(each.ratio.interval) if each.ratio and each.ratio.interval else None,
                "word": each.word.value,
                "unfit": each.unfit or None,
                "tied": each in tied,
            }
            for each in answer.compared
        ],
    }

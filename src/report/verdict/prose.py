"""Write the sentences of a verdict: the choice, its cost, what is as good, what not to use, the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from src.report.verdict import words
from src.report.verdict.answer import Answer, Compared, Word, hold_against
from src.report.verdict.candidates import Candidate
from src.report.verdict.next_step import next_step
from src.report.verdict.objective import ACCURACY, THROUGHPUT, Objective
from src.report.views import show
from src.run.status import Status

# So many configurations are named in a sentence before the rest is counted.
NAMED = 3
NOTHING, UNDECIDED = "nothing that was measured", "undecided"
# Runs that say nothing of their configuration.
LOST = (Status.FAILED, Status.MISSING, Status.SKIPPED)


@dataclass(frozen=True)
class Sentence:
    """A sentence of a verdict, with the cells of the runs on which it stands."""

    text: str
    cells: tuple[str, ...] = ()


def sentences(
    answers: Sequence[Answer], objective: Objective, study: Mapping[str, Any], lost: int = 0
) -> list[Sentence]:
    """Return two to five sentences on the answers about one subject, one answer a batch.

    `lost` counts the cells of the whole study that failed or are missing.
    """
    said = [
        _choice(answers, objective),
        _cost(answers),
        _tied(answers),
        _not(answers),
        _evidence(answers, study, lost),
    ]
    return [sentence for sentence in said if sentence is not None]


def headline(answers: Sequence[Answer]) -> str:
    """Return the choice in a few words."""
    every = [_short(answer) for answer in answers]
    # What isn't decided of some batches doesn't contradict what is of others.
    names = dict.fromkeys([name for name in every if name != UNDECIDED] or every)
    return next(iter(names)) if len(names) == 1 else "it depends on the batch"


def _short(answer: Answer) -> str:
    if answer.chosen is None:
        return NOTHING
    if not answer.repeated and len(answer.compared) > 1:
        return UNDECIDED
    named = words.name(answer.chosen.candidate, answer.question)
    return f"{named}, by disturbed runs" if _all_disturbed(answer) else named


def _all_disturbed(answer: Answer) -> list[str]:
    """Return the names of the choice, and of what it stands over, if others disturbed all runs of it."""
    chosen = answer.chosen
    if chosen is None or not answer.aim.timed:
        return []
    known = [each for each in (chosen.candidate, chosen.reference) if each is not None]
    marked = [each for each in known if all(row.get("disturbed") for row in each.measured)]
    return [words.name(each, answer.question) for each in marked]


def _choice(answers: Sequence[Answer], objective: Objective) -> Sentence:
    clauses = [f"{_at(answer, answers)}{_chosen(answer, objective)}" for answer in answers]
    cells = [
        cell
        for answer in answers
        for each in ([answer.chosen] if answer.chosen else answer.compared)
        for known in (each.candidate, each.reference)
        if known is not None
        for cell in known.cells
    ]
    return Sentence(_sentence("; ".join(clauses)), tuple(dict.fromkeys(cells)))


def _chosen(answer: Answer, objective: Objective) -> str:
    """Return the clause that names the choice of one question, and what it gives."""
    chosen, aim, question = answer.chosen, answer.aim, answer.question
    if chosen is None:
        lacking = {each.unfit for each in answer.compared}
        if len(lacking) == 1:
            return f"{NOTHING} can be chosen by aim={aim.name}: each configuration {lacking.pop()}"
        reasons = [f"{words.name(each.candidate, question)} {each.unfit}" for each in answer.compared]
        return f"{NOTHING} can be chosen: {_few(reasons)}"
    named, figure = words.name(chosen.candidate, question), words.figure(chosen.candidate, objective)
    if chosen.word is Word.BETTER and chosen.ratio is not None and chosen.reference is not None:
        said = f"use {named}: {figure}, {_over(chosen, answer, first=True)}{_alike(answer)}"
        if marked := _all_disturbed(answer):
            said += f"; but other processes disturbed every run of {' and of '.join(marked)}"
        return said
    if sum(bool(each.candidate.measured) for each in answer.compared) == 1:
        return f"only {named} was measured: {figure}"
    if answer.repeated and not chosen.candidate.alone:
        return f"use {named}: {figure}{_unsure(chosen, answer)}"
    if answer.repeated:
        return f"stay with {named}: {figure}; nothing {aim.better} is shown"
    once = [
        f"{words.name(each.candidate, question)} {_over(each, answer)}"
        for each in answer.compared
        if each.ratio is not None and each.reference is not None and not each.unfit
    ]
    seen = f"; in these runs: {_few(once, '; ')}" if once else ""
    twice = "two seeds" if aim.name == ACCURACY else "two runs of the same"
    return f"nothing {aim.better} than {named} ({figure}) is shown: how far {twice} differ isn't known{seen}"


def _unsure(chosen: Compared, answer: Answer) -> str:
    """Return a clause on a choice of several devices that isn't shown to be better than one device."""
    if chosen.ratio is None or chosen.reference is None:
        if answer.runner_up is None:
            return "; no run on one device tells what that gains"
        other, ratio = answer.runner_up
        return f", {words.over(ratio, words.name(other.candidate, answer.question), answer.aim, first=True)}"
    fit = [each for each in answer.compared if not each.unfit]
    which = "the only one that can be chosen" if len(fit) == 1 else "of what can be chosen"
    return f"; {which}, {_over(chosen, answer, first=True)}"


def _over(each: Compared, answer: Answer, *, first: bool = False) -> str:
    """Return how a configuration stands to what it is compared with, and what of their hardware differs."""
    assert each.ratio is not None and each.reference is not None
    metric = str(each.candidate.first.get("metric") or ACCURACY)
    reference = words.name(each.reference, answer.question)
    shown = words.over(each.ratio, reference, answer.aim, first=first, metric=metric)
    note = each.candidate.first.get("baseline_note") if answer.aim.name == THROUGHPUT else None
    return f"{shown}, which had {note}" if note else shown


def _alike(answer: Answer) -> str:
    """Return a clause on a choice that doesn't learn as one device does; empty where it does."""
    chosen = answer.chosen
    if chosen is None or chosen.candidate.learns_alike or answer.aim.name == ACCURACY:
        return ""
    others = [each for each in answer.compared if each.word is Word.BETTER and each.candidate.learns_alike]
    others = [each for each in others if not each.unfit]
    said = f"; it doesn't learn as one device does ({words.score(chosen.candidate)})"
    if not others:
        return said
    choose = max if answer.aim.more else min
    best = choose(others, key=lambda each: each.candidate.middle(answer.aim.metric) or 0.0)
    return f"{said}, as {words.name(best.candidate, answer.question)} does, {_over(best, answer)}"


def _cost(answers: Sequence[Answer]) -> Sentence | None:
    """Say what a choice of several devices takes: devices, memory, accuracy, parity."""
    several = [
        answer.chosen
        for answer in answers
        if answer.chosen and answer.chosen.reference and answer.chosen.word is Word.BETTER
    ]
    if not several:
        return None
    both = [(each.candidate, each.reference) for each in several if each.reference is not None]
    devices = words.span([one.devices for one, _ in both], "count")
    each_gives = words.span([one.middle("scaling_efficiency") for one, _ in both], "percent")
    parts = [f"it takes {devices} device{'s' if devices != '1' else ''}"]
    if each_gives and devices != "1":
        parts[0] += f", each of which does {each_gives} of what one alone does"
        parts[0] += _of_capacity(answers)
    for text, shown in (("{} of memory a device", _memory), ("{}", _scores)):
        mine, theirs = (shown([known[side] for known in both]) for side in (0, 1))
        if mine:
            parts.append(text.format(mine) + (f" (one device: {theirs})" if theirs else ""))
    if said := _parity(several):
        parts.append(said)
    cells = [cell for pair in both for known in pair for cell in known.cells]
    cells += [cell for most in _capacities(answers) for cell in most.cells]
    return Sentence(_sentence("; ".join(parts)), tuple(dict.fromkeys(cells)))


def _of_capacity(answers: Sequence[Answer]) -> str:
    """Return which part of its devices' measured capacity a choice reaches; empty where it isn't known."""
    shown = []
    for answer in answers:
        chosen = answer.chosen
        for most in _capacities([answer]):
            assert chosen is not None
            aim, pool = answer.aim, answer.question.pool(answer.aim)
            share = hold_against(chosen.candidate.figures(aim), most.figures(aim), pool, aim)
            if share is not None:
                text = f"{show(share.value, 'percent')} of their capacity"
                if share.interval is not None:
                    low, high = (show(bound, "percent") for bound in share.interval)
                    text += f", {low} to {high}"
                shown.append(text + f"; it is {show(most.middle('speedup'), 'ratio')}")
    # Several batches have one each, for which there is no room.
    return f" ({shown[0]})" if len(shown) == 1 else ""


def _capacities(answers: Sequence[Answer]) -> list[Candidate]:
    """Return what measured the capacity of the devices of each choice that is better than one device."""
    return [
        most
        for answer in answers
        if answer.aim.name == THROUGHPUT and answer.chosen and answer.chosen.word is Word.BETTER
        if (most := answer.question.capacity(answer.chosen.candidate.devices)) is not None
    ]


def _memory(candidates: Sequence[Candidate]) -> str:
    return words.span([each.middle("memory_peak_bytes") for each in candidates], "bytes")


def _scores(candidates: Sequence[Candidate]) -> str:
    known = [each for each in candidates if each.middle("score") is not None]
    return " to ".join(dict.fromkeys(words.score(each) for each in known))


def _parity(chosen: Sequence[Compared]) -> str:
    """Return what is known of the choice's losses beside those of one device."""
    verdicts = dict.fromkeys(str(word) for each in chosen for word in each.candidate.known("parity"))
    if list(verdicts) == ["holds"]:
        return "its first losses are those of one device (parity holds)"
    return f"parity: {', '.join(verdicts)}" if verdicts else "whether it computes the same isn't known"


def _tied(answers: Sequence[Answer]) -> Sentence | None:
    """Say which configurations are as good as the choice, as far as known."""
    clauses: list[str] = []
    cells: list[str] = []
    for answer in answers:
        found = []
        for each, between in answer.tied:
            shown = words.name(each.candidate, answer.question)
            if between is not None:
                metric = str(each.candidate.first.get("metric") or ACCURACY)
                shown += f", {words.over(between, 'it', answer.aim, metric=metric)}"
            found.append(shown)
            cells += each.candidate.cells
        if found and answer.chosen is not None:
            cells += answer.chosen.candidate.cells
        if found:
            clauses.append(f"{_at(answer, answers)}{_few(found, '; ')}")
    return Sentence(f"As good, as far as known: {'; '.join(clauses)}.", tuple(cells)) if clauses else None


def _not(answers: Sequence[Answer]) -> Sentence | None:
    """Say what not to use: what can't be chosen, then the worst; and what isn't shown to gain anything."""
    refused: list[str] = []
    useless: list[str] = []
    cells: list[str] = []
    for answer in answers:
        if answer.chosen is None:
            continue
        unfit = [each for each in answer.compared if each.unfit and not each.candidate.statuses <= {*LOST}]
        others = [each for each in answer.compared if each not in unfit and each is not answer.chosen]
        tied = [each for each, _ in answer.tied]
        others = [each for each in others if each not in tied]
        worse = [each for each in others if each.word is Word.WORSE]
        worse.sort(key=lambda each: each.ratio.value if each.ratio else 0, reverse=not answer.aim.more)
        equal = [each for each in others if each.word is Word.EQUAL]
        for clauses, known in ((refused, [*unfit, *worse]), (useless, equal)):
            if found := [_beside(each, answer) for each in known]:
                clauses.append(f"{_at(answer, answers)}{_few(found, '; ')}")
                sides = [side for each in known for side in (each.candidate, each.reference)]
                cells += [cell for side in sides if side is not None for cell in side.cells]
    parts = [f"don't use {'; '.join(refused)}"] if refused else []
    parts += [f"no gain is shown by {'; '.join(useless)}"] if useless else []
    return Sentence(_sentence("; ".join(parts)), tuple(dict.fromkeys(cells))) if parts else None


def _beside(each: Compared, answer: Answer) -> str:
    """Return a configuration's name with why it can't be chosen, or its ratio to what it stands over."""
    named = words.name(each.candidate, answer.question)
    if each.unfit:
        return f"{named}, which {each.unfit}"
    if each.ratio is None or each.reference is None:
        return named
    return f"{named}: {_over(each, answer)}{words.why(each)}"


def _evidence(answers: Sequence[Answer], study: Mapping[str, Any], lost: int) -> Sentence:
    """Say how many runs there are, what disturbed them, and what would tell most."""
    rows = [row for answer in answers for each in answer.compared for row in each.candidate.rows]
    measured = [row for row in rows if row["status"] not in LOST]
    counts = {
        sum(row["status"] not in LOST for row in known.candidate.rows)
        for answer in answers
        for known in answer.compared
    } - {0}
    parts = [f"{len(measured)} run{'s' if len(measured) != 1 else ''}"]
    if max(counts, default=0) > 1:
        parts[0] += f", {'up to ' if len(counts) > 1 else ''}{max(counts)} of each configuration"
    kinds = (
        ("disturbed", "disturbed by other processes"),
        (
            "probe_flag",
            "whose machine's speed changed, or was another than their baseline's, by more than 10 %",
        ),
    )
    for key, said in kinds:
        marked = {
            words.name(each.candidate, answer.question): sum(
                bool(row.get(key)) for row in each.candidate.rows
            )
            for answer in answers
            for each in answer.compared
        }
        if count := sum(marked.values()):
            named = [f"{name}: {times}" for name, times in marked.items() if times]
            parts.append(f"{count} of them {said} ({_few(named)})")
    if seldom := [
        words.name(each.candidate, answer.question)
        for answer in answers
        if answer.repeated
        for each in answer.compared
        if each.word is Word.UNKNOWN and each.reference is not None and not each.unfit
    ]:
        parts.append(f"too few to compare {_few(seldom)}")
    skipped = [
        row["run"].error or "what they ask isn't here" for row in rows if row["status"] == Status.SKIPPED
    ]
    parts += [f"{skipped.count(why)} skipped on this machine ({why})" for why in dict.fromkeys(skipped)]
    failed = [row for row in rows if row["status"] in LOST and row["status"] != Status.SKIPPED]
    if named := [f"{row['cell']} {row['status']}" for row in failed]:
        parts.append(f"without {_few(named)}")
    elif lost:
        parts.append(f"{lost} failed or missing cell{'s' if lost > 1 else ''} in the study")
    if any(answer.chosen and answer.chosen.candidate.first.get("bound") == "input" for answer in answers):
        parts.append("bound by their input, which no further device makes faster")
    if step := next_step(answers, study, lost):
        parts.append(step)
    return Sentence(_sentence("; ".join(parts)), tuple(row["cell"] for row in rows))


def _at(answer: Answer, answers: Sequence[Answer]) -> str:
    return f"at batch {answer.question.batch} " if len(answers) > 1 else ""


def _few(names: Sequence[str], between: str = ", ") -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return between.join(names[:NAMED]) + rest


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."

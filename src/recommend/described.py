"""Recommend how to train on devices that nobody has, by what is predicted of every way to divide the work."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from src.config import Config, command_line, compose
from src.predict import ledger
from src.predict.asked import HERE
from src.predict.ledger import Entry
from src.predict.own import command, runs
from src.recommend import candidates, question, rules
from src.recommend.candidate import LEVEL, TO_TARGET, Candidate, doubts
from src.recommend.candidates import Found
from src.recommend.choice import Choice, Limits, choose
from src.recommend.question import MEMORY, Question
from src.recommend.sentences import batches_of, limits_of, max_minutes, of_step, opening, others, refused
from src.recommend.to_target import Evidence
from src.recommend.words import duration, energy, number, span
from src.report.verdict.objective import ENERGY

if TYPE_CHECKING:
    from src.recommend.page import Section

COMMAND = "recommend"


def recommend(words: Sequence[str], *, as_json: bool, to: Path | None = None) -> int:
    """Print what to choose for each batch, and write a page to a path; return 0, or 1 for no choice.

    Raises:
        ConfigError: for a mistake in the words.
    """
    asked = question.read(words)
    # A ledger that can't be read is said before a minute of looking.
    ledger.read()
    found = candidates.of(asked)
    batches = [None] if asked.over_batches else asked.batches
    answers = [_answer(batch, asked, found) for batch in batches]
    chosen = [each.choice.chosen for each in answers if each.choice.chosen is not None]
    past = command.note([_entry(each, asked) for each in chosen])
    if as_json:
        content = [_as_json(each, asked, past) for each in answers]
        print(json.dumps([*content, {"not_predicted": found.reasons}], indent=2))
    else:
        for each in answers:
            _print(each, asked, past)
        for reason in found.reasons:
            print(f"not predicted: {reason}")
    if to is not None:
        from src.recommend import page

        page.write(to, [_section(each, asked, past) for each in answers], found.reasons)
    sys.stdout.flush()
    return 0 if chosen else 1


@dataclass(frozen=True)
class Answer:
    """The answer for a batch, or for all that compare.

    Attributes:
        batch: samples of a step; `None` for all.
        choice: what is chosen.
        alone: one device; `None` where nothing is predicted of it.
        suffices: whether that wasn't asked for, and would be chosen if it were.
        subject: what is trained, on what.
        evidence: of the steps to a target; `None` without any.
    """

    batch: int | None
    choice: Choice[Candidate]
    alone: Candidate | None
    suffices: bool
    subject: str
    evidence: Evidence | None = None


def _answer(batch: int | None, asked: Question, found: Found) -> Answer:
    alike = [each for each in found.candidates if batch is None or each.batch == batch]
    able = [each for each in alike if each.devices > 1 or asked.takes_one]
    limits = Limits(asked.objective.hours, asked.most_cost)
    aim = asked.objective.aim.name
    choice = choose(able, aim, limits)
    singles = sorted((each for each in alike if each.devices == 1), key=lambda each: -each.value(aim))
    # What doesn't fit tells only where nothing on one device does.
    alone = next((each for each in singles if each.fits), singles[0] if singles else None)
    would = choice.chosen if asked.takes_one else choose(alike, aim, limits).chosen
    suffices = not asked.takes_one and would is not None and would.devices == 1
    return Answer(batch, choice, would if suffices else alone, suffices, found.subject, found.evidence)


def sentences(answer: Answer, asked: Question, past: Sequence[Entry]) -> list[str]:
    """Return the answer for a batch in sentences."""
    choice, alone = answer.choice, answer.alone
    if choice.chosen is None:
        reasons_ = refused(choice)
        return ["Nothing can be chosen.", *reasons_] if reasons_ else ["Nothing can be predicted."]
    chosen = choice.chosen
    other = alone is not None and alone.batch != chosen.batch
    at_batch = f" at batch {alone.batch}" if alone is not None and other else ""
    said = opening(choice, alone, lambda each: _figures(each, asked), at_batch, suffices=answer.suffices)
    said.append(_why(chosen))
    said += others(choice, lambda each: _figures(each, asked))
    said.append(_evidence(chosen, asked, past))
    if answer.evidence is not None and chosen.target is not None:
        said.append(answer.evidence.sentence(chosen.batch, divided=chosen.samples < chosen.batch))
    said += rules.sentences(chosen, alone, per_node(asked), choice.aim)
    said.append(_next_step(answer, asked))
    return said


def per_node(asked: Question) -> int:
    """Return how many devices a node has."""
    return asked.devices.devices_of_a_node


def _figures(candidate: Candidate, asked: Question) -> str:
    low, high = candidate.interval
    whole = []
    if candidate.cost is not None and asked.objective.prices is not None:
        whole.append(f"{candidate.cost:.3g} {asked.objective.prices.currency}")
    if asked.objective.aim.name == ENERGY and candidate.kilowatt_hours is not None:
        whole.append(f"at most {energy(candidate.kilowatt_hours)} of the devices")
    if whole or candidate.target is not None or asked.objective.hours is not None:
        until = "to the target" if candidate.target is not None else "in all"
        whole.append(f"{span(candidate.hours, candidate.hours_interval)} {until}")
    in_all = f", {', '.join(whole)}" if whole else ""
    rate = f"{number(candidate.rate)} samples/s ({number(low)} to {number(high)})"
    return f"{rate}, {candidate.gib:.3g} GiB a device{in_all}"


# What a step takes of which the device does nothing.
HOST = "its host"


def _why(chosen: Candidate) -> str:
    """Say what a step consists of, and what follows where its host holds the device up."""
    said = f"A step takes {1e3 * chosen.parts.seconds:.4g} ms: {of_step(chosen.parts, HOST)}."
    held_up = chosen.parts.other > chosen.parts.seconds / 2
    return f"{said} Its host holds the device up: a larger batch takes hardly longer." if held_up else said


def _evidence(chosen: Candidate, asked: Question, past: Sequence[Entry]) -> str:
    kind = f"{chosen.strategy} on {asked.devices.hardware}"
    return f"Times rest on data sheets; {kind}: {ledger.so_far(past, kind)}."


def _next_step(answer: Answer, asked: Question) -> str:
    """Say what would tell most: what most of the doubt between the choice and the next best is of."""
    chosen = answer.choice.chosen
    assert chosen is not None
    others = [*answer.choice.tied, *answer.choice.behind]
    if not others or answer.choice.aim == MEMORY:
        it = typed(chosen, asked, answer.evidence)
        return f"Would tell most: a run of it with memory_tracker=true, `{it}`."
    next_best = others[0]
    found = doubts(chosen, next_best)
    most = max(found, key=lambda name: found[name])
    if most in ("computing", "steps") and answer.alone is not None and answer.alone.fits:
        one = ("strategy=single", *asked.devices.words, f"batch={chosen.samples}")
        return f"Would tell most: a run on one such device, `python -m src.train {shlex.join(one)}`."
    if most == TO_TARGET and answer.evidence is not None:
        vague = max((chosen, next_best), key=_vagueness)
        words = ["strategy=single", *asked.devices.words, f"batch={vague.batch}"]
        words += answer.evidence.words(vague.batch, words)
        # One device does the work of all.
        words += [*max_minutes(words, vague.devices * vague.hours_interval[1]), "seed=0,1,2", "-m"]
        return f"Would tell most: steps to the target of `python -m src.train {shlex.join(words)}`."
    # A few steps of both tell more than anything by itself.
    both = " and ".join(f"`{typed(each, asked, answer.evidence)}`" for each in (chosen, next_best))
    return f"Would tell most: a few steps of each of {both}."


def _vagueness(candidate: Candidate) -> float:
    """Return how many times as many steps a way may need as it may at least."""
    return 1.0 if candidate.target is None else candidate.target.steps.high / candidate.target.steps.low


def typed(chosen: Candidate, asked: Question, evidence: Evidence | None = None) -> str:
    """Return the command that trains so, for as long as that takes, on as many nodes as there are."""
    words = [*asked.devices.words, *chosen.words]
    if evidence is not None and chosen.target is not None:
        words += evidence.words(chosen.batch, words)
    # Up to a target it may take as many steps as the interval has.
    words += max_minutes(words, chosen.hours if chosen.target is None else chosen.hours_interval[1])
    nodes, left = divmod(chosen.devices, per_node(asked))
    if chosen.devices > per_node(asked):
        # Workers are spread evenly over so many hosts; without that each is filled before the next one.
        words += ["hardware=cluster", *([] if left else [f"hardware.hosts={nodes}"])]
    return f"python -m src.train {shlex.join(words)}"


def _config(chosen: Candidate, asked: Question) -> Config:
    (config,) = compose.cells(command_line.parse([*asked.devices.words, *HERE, *chosen.words]))
    return config


def _signature(chosen: Candidate, asked: Question, config: Config | None = None) -> str:
    """Return what runs have in common that tell whether a prediction came true."""
    config = config or _config(chosen, asked)
    devices = asked.devices
    return runs.signature_on(config, devices.hardware, "seconds", devices.between(config))


def _entry(chosen: Candidate, asked: Question) -> Entry:
    """Return a choice as the ledger has it."""
    config, devices = _config(chosen, asked), asked.devices
    low, high = chosen.interval
    return Entry(
        command=COMMAND,
        kind=f"{chosen.strategy} on {devices.hardware}",
        what=devices.called(config),
        signature=_signature(chosen, asked, config),
        unit="seconds",
        basis="data sheet",
        predicted=chosen.parts.seconds,
        low=chosen.batch / high,
        high=chosen.batch / low,
    )


def _print(answer: Answer, asked: Question, past: Sequence[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    choice = answer.choice
    console.print(f"{_title(answer, asked)}:", soft_wrap=True)
    for sentence in sentences(answer, asked, past):
        console.print(f"  {sentence}", soft_wrap=True)
    if choice.chosen is not None:
        console.print(f"  Type: {typed(choice.chosen, asked, answer.evidence)}", soft_wrap=True)
    if choice.front:
        priced = asked.objective.prices is not None
        titles = ["devices", "way", "samples/s", f"{100 * LEVEL:.0f} % interval", "GiB"]
        title = "Of these ways no other is as fast on as few devices that hold as little"
        timed = priced or answer.evidence is not None or asked.objective.hours is not None
        further = [*(["time"] if timed else []), *(["cost"] if priced else [])]
        table = Table(*titles, *further, title=title, box=None)
        for each in choice.front:
            low, high = each.interval
            cells = [str(each.devices), each.name.replace(f" on {each.devices} devices", "")]
            cells += [f"{number(each.rate)}", f"{number(low)} to {number(high)}", f"{each.gib:.3g}"]
            cells += [duration(each.hours)] if timed else []
            cells += [f"{each.cost:.3g}"] if priced else []
            table.add_row(*cells)
        console.print(table)


def _title(answer: Answer, asked: Question) -> str:
    devices = asked.devices
    joined = f", {devices.network} between nodes" if devices.network else ""
    batches = answer.batch or " or ".join(map(str, batches_of(answer.choice) or asked.batches))
    most = f"{max(devices.devices)} {devices.hardware}{joined}"
    return f"{answer.subject}, batch {batches}, on up to {most}, for {answer.choice.aim}"


def _section(answer: Answer, asked: Question, past: Sequence[Entry]) -> Section:
    """Return an answer as a page has it."""
    from src.recommend.page import Section, Shown

    choice = answer.choice
    every = [*([choice.chosen] if choice.chosen else []), *choice.tied, *choice.behind]
    came = command.came_on_described() if every else {}
    ways = []
    for each in sorted(every, key=lambda each: -each.value(choice.aim)):
        figures = (("GiB", f"{each.gib:.3g}"), ("time", duration(each.hours)))
        priced = () if each.cost is None else (("cost", f"{each.cost:.3g}"),)
        measured = [seconds for _, seconds, _ in came.get(_signature(each, asked), ())] if came else []
        ways.append(
            Shown(
                each.strategy,
                each.name,
                each.devices,
                each.batch / median(measured) if measured else each.rate,
                *each.interval,
                predicted=each.rate,
                measured=bool(measured),
                of_prediction=bool(measured),
                burdens=(*figures, *priced),
            )
        )
    chosen = choice.chosen
    return Section(
        _title(answer, asked),
        sentences(answer, asked, past),
        "" if chosen is None else typed(chosen, asked, answer.evidence),
        "" if chosen is None else chosen.name,
        ways,
    )


def _as_json(answer: Answer, asked: Question, past: Sequence[Entry]) -> dict[str, Any]:
    """Return an answer for programs, in seconds, bytes and hours, with its sentences."""

    def shown(each: Candidate) -> dict[str, Any]:
        low, high = each.interval
        return {
            "name": each.name,
            "strategy": each.strategy,
            "devices": each.devices,
            "degrees": vars(each.degrees),
            "microbatches": each.microbatches,
            "samples": each.samples,
            "seconds": each.parts.seconds,
            "parts": vars(each.parts),
            "samples_per_second": each.rate,
            "low": low,
            "high": high,
            "bytes": round(each.bytes),
            "fits": each.fits,
            "batch": each.batch,
            "hours": each.hours,
            "hours_interval": each.hours_interval,
            "device_hours": each.device_hours,
            "kilowatt_hours": each.kilowatt_hours,
            "cost": each.cost,
            "steps_to_target": None if each.target is None else vars(each.target.steps),
            "command": typed(each, asked, answer.evidence),
        }

    choice = answer.choice
    return {
        "batch": answer.batch,
        "aim": choice.aim,
        "hardware": asked.devices.hardware,
        "network": asked.devices.network,
        "limits": limits_of(asked.objective, asked.most_cost),
        "currency": None if asked.objective.prices is None else asked.objective.prices.currency,
        "chosen": None if choice.chosen is None else shown(choice.chosen),
        "one_device": None if answer.alone is None else shown(answer.alone),
        "as_good": [shown(each) for each in choice.tied],
        "behind": [shown(each) for each in choice.behind],
        "front": [shown(each) for each in choice.front],
        "refused": list(choice.refused),
        "sentences": sentences(answer, asked, past),
    }

"""Recommend how to train on devices that nobody has, by what is predicted of every way to divide the work."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from src.config import Config, command_line, compose
from src.predict import ledger, sheets
from src.predict.asked import HERE
from src.predict.ledger import Entry
from src.predict.own import command, runs
from src.recommend import candidates, question, rules
from src.recommend.candidate import LEVEL, Candidate
from src.recommend.candidates import Found
from src.recommend.choice import SHOWN, Choice, Limits, choose
from src.recommend.question import Question

COMMAND = "recommend"


def recommend(words: Sequence[str], *, as_json: bool) -> int:
    """Print what to choose for each batch; return 0, or 1 where nothing can be chosen.

    Raises:
        ConfigError: for a mistake in the words.
    """
    asked = question.read(words)
    found = candidates.of(asked)
    limits = Limits(asked.objective.hours, asked.most_cost)
    answers = {
        batch: choose(
            [each for each in found.candidates if each.batch == batch], asked.objective.aim.name, limits
        )
        for batch in asked.batches
    }
    chosen = [answer.chosen for answer in answers.values() if answer.chosen is not None]
    past = command.note([_entry(each, asked) for each in chosen])
    if as_json:
        content = [_as_json(batch, answer, asked, past) for batch, answer in answers.items()]
        print(json.dumps([*content, {"not_predicted": list(found.reasons)}], indent=2))
    else:
        for batch, answer in answers.items():
            _print(batch, answer, asked, found, past)
        for reason in found.reasons:
            print(f"not predicted: {reason}")
    sys.stdout.flush()
    return 0 if chosen else 1


def sentences(batch: int, answer: Choice, asked: Question, found: Found, past: Sequence[Entry]) -> list[str]:
    """Return the answer for a batch in sentences."""
    if answer.chosen is None:
        why = [f"{reason[0].upper()}{reason[1:]}." for reason in answer.refused]
        return ["Nothing can be chosen.", *why] if why else ["Nothing can be predicted."]
    chosen, devices = answer.chosen, asked.devices
    alike = [each for each in found.candidates if each.batch == batch]
    alone = next((each for each in alike if each.devices == 1), None)
    said = [f"Train with {chosen.name}: {_figures(chosen, asked)}."]
    if chosen.devices == 1 and max(devices.devices) > 1:
        said.append("Nothing should be distributed: more devices aren't faster, as far as known.")
    elif alone is not None and alone is not chosen:
        fits = "" if alone.fits else ", which it doesn't fit into"
        said.append(f"That is {chosen.rate / alone.rate:.3g} times one device{fits}.")
    said.append(_why(chosen))
    if answer.tied:
        shown = "; ".join(f"{each.name}, {_figures(each, asked)}" for each in answer.tied[:SHOWN])
        more = f"; and {len(answer.tied) - SHOWN} more" if len(answer.tied) > SHOWN else ""
        said.append(f"As good, as far as known: {shown}{more}.")
    if answer.behind:
        shown = "; ".join(f"{each.name}, {_figures(each, asked)}" for each in answer.behind[:SHOWN])
        said.append(f"Behind it: {shown}.")
    said += [f"{reason[0].upper()}{reason[1:]}." for reason in answer.refused]
    said.append(_evidence(chosen, asked, past))
    said += rules.sentences(chosen, alone, per_node(asked))
    said.append(_next_step(chosen, asked))
    return said


def per_node(asked: Question) -> int:
    """Return how many devices a node has."""
    return asked.devices.per_node or sheets.device(asked.devices.hardware).node


def _figures(candidate: Candidate, asked: Question) -> str:
    low, high = candidate.interval
    cost = ""
    if candidate.cost is not None and asked.objective.prices is not None:
        cost = f", {candidate.cost:.3g} {asked.objective.prices.currency} and {candidate.hours:.3g} h in all"
    return (
        f"{candidate.rate:,.4g} samples/s ({low:,.4g} to {high:,.4g}), {candidate.gib:.3g} GiB a device{cost}"
    )


def _why(chosen: Candidate) -> str:
    """Say what a step consists of."""
    parts = chosen.parts
    named = {
        "computing": parts.compute,
        "exchanges that computing doesn't hide": parts.exchange,
        "idle stages": parts.bubble,
        "what a step costs whatever it does": parts.other,
    }
    shown = ", ".join(
        f"{name} {100 * value / parts.seconds:.0f} %"
        for name, value in sorted(named.items(), key=lambda item: -item[1])
        if value >= 0.005 * parts.seconds
    )
    return f"A step takes {1e3 * parts.seconds:.4g} ms: {shown}."


def _evidence(chosen: Candidate, asked: Question, past: Sequence[Entry]) -> str:
    kind = f"{chosen.strategy} on {asked.devices.hardware}"
    return f"All of it rests on data sheets; {kind}: {ledger.so_far(past, kind)}."


def _next_step(chosen: Candidate, asked: Question) -> str:
    """Say what would tell most: what the doubt of a step is made of."""
    apart = {name: getattr(chosen.parts, name) for name in ("compute", "exchange", "other")}
    most = max(apart, key=lambda name: apart[name])
    if most == "exchange" and chosen.devices > 1:
        return (
            "Would tell most: exchanges between two such devices, `python -m src.profile network "
            "hardware=...` on them."
        )
    words = " ".join(("strategy=single", *asked.devices.words, f"batch={chosen.samples}"))
    return f"Would tell most: a run on one such device, `python -m src.train {words}`."


def typed(chosen: Candidate, asked: Question) -> str:
    """Return the command that trains so."""
    return f"python -m src.train {' '.join((*asked.devices.words, *chosen.words))}"


def _config(chosen: Candidate, asked: Question) -> Config:
    (config,) = compose.cells(command_line.parse([*asked.devices.words, *HERE, *chosen.words]))
    return config


def _entry(chosen: Candidate, asked: Question) -> Entry:
    """Return a choice as the ledger has it."""
    config, devices = _config(chosen, asked), asked.devices
    low, high = chosen.interval
    return Entry(
        command=COMMAND,
        kind=f"{chosen.strategy} on {devices.hardware}",
        what=devices.called(config),
        signature=runs.signature_on(config, devices.hardware, "seconds", devices.between(config)),
        unit="seconds",
        basis="data sheet",
        predicted=chosen.parts.seconds,
        low=chosen.batch / high,
        high=chosen.batch / low,
    )


def _print(batch: int, answer: Choice, asked: Question, found: Found, past: Sequence[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    devices = asked.devices
    joined = f", {devices.network} between nodes" if devices.network else ""
    model = " ".join(word for word in devices.words if word.startswith(("model=", "dataset=")))
    console.print(
        f"{model}, batch {batch}, on up to {max(devices.devices)} {devices.hardware}{joined}, for "
        f"{answer.aim}:"
    )
    for sentence in sentences(batch, answer, asked, found, past):
        console.print(f"  {sentence}", soft_wrap=True)
    if answer.chosen is not None:
        console.print(f"  Type: {typed(answer.chosen, asked)}", soft_wrap=True)
    if answer.front:
        priced = asked.objective.prices is not None
        titles = ["devices", "way", "samples/s", f"{100 * LEVEL:.0f} % interval", "GiB"]
        title = "No other way is as fast on as few devices that hold as little"
        table = Table(*titles, *(["cost", "hours"] if priced else []), title=title, box=None)
        for each in answer.front:
            low, high = each.interval
            cells = [str(each.devices), each.name.replace(f" on {each.devices} devices", "")]
            cells += [f"{each.rate:,.4g}", f"{low:,.4g} to {high:,.4g}", f"{each.gib:.2f}"]
            cells += [f"{each.cost:.4g}", f"{each.hours:.3g}"] if priced else []
            table.add_row(*cells)
        console.print(table)


def _as_json(batch: int, answer: Choice, asked: Question, past: Sequence[Entry]) -> dict[str, Any]:
    """Return an answer for programs, in seconds, bytes and hours."""

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
            "bytes": round(each.gib * 2**30),
            "hours": each.hours,
            "cost": each.cost,
            "command": typed(each, asked),
        }

    chosen = answer.chosen
    return {
        "batch": batch,
        "aim": answer.aim,
        "chosen": None if chosen is None else shown(chosen),
        "as_good": [shown(each) for each in answer.tied],
        "behind": [shown(each) for each in answer.behind],
        "front": [shown(each) for each in answer.front],
        "refused": list(answer.refused),
        "evidence": None if chosen is None else _evidence(chosen, asked, past),
        "rules": [] if chosen is None else rules.sentences(chosen, None, per_node(asked)),
    }

"""Recommend how to train on one's own devices, by runs that they have had and what a profile predicts."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.config import Config, ConfigError
from src.predict import ledger
from src.predict.ledger import Entry
from src.predict.own import command, cost_profile, runs
from src.recommend import own_question, own_ways
from src.recommend.candidate import LEVEL
from src.recommend.choice import Choice, Limits, choose
from src.recommend.own_question import OwnQuestion
from src.recommend.own_ways import OwnFound, OwnWay
from src.recommend.sentences import batches_of, limits_of, max_minutes, of_step, opening, others, refused
from src.recommend.words import duration, number, span

if TYPE_CHECKING:
    from src.recommend.page import Section

COMMAND = "recommend"
# What a step of a profile takes besides.
REST = "updates and all else"


def recommend(
    words: Sequence[str], profile: Path, given: Sequence[Path], *, as_json: bool, to: Path | None = None
) -> int:
    """Print what to choose for each batch; return 0, or 1 where nothing can be chosen.

    Args:
        words: of the command line.
        profile: path of a profile, or of its folder.
        given: folders of runs that calibrate, or are what is asked for.
        as_json: whether what is printed is for programs.
        to: path of a page with the answers; `None` for none.

    Raises:
        ConfigError: for a mistake in the words, or a file that is no profile.
    """
    asked = own_question.read(words)
    known, here = cost_profile.read(profile), cost_profile.machine()
    if known.machine != here:
        raise ConfigError(
            f"{known.path}: is of another machine ({known.machine}), and choices are for this one ({here}); "
            "`python -m src.profile` makes one, and `python -m src.predict --profile` tells of the other"
        )
    # A ledger that can't be read is said before anything is looked for.
    ledger.read()
    found = own_ways.of(asked, known, given)
    batches = [None] if asked.over_batches else asked.batches
    for line in found.left:
        print(f"doesn't calibrate: {line}", file=sys.stderr)
    answers = [_answer(batch, asked, found) for batch in batches]
    chosen = [each.choice.chosen for each in answers if each.choice.chosen is not None]
    past = command.note([_entry(each) for each in chosen if each.basis != "measured"])
    if as_json:
        content = [_as_json(each, asked, found, past) for each in answers]
        print(json.dumps([*content, {"not_predicted": reasons(asked, found)}], indent=2))
    else:
        for each in answers:
            _print(each, asked, found, past)
        for line in reasons(asked, found):
            print(f"not predicted: {line}")
    if to is not None:
        from src.recommend import page

        page.write(to, [_section(each, asked, found, past) for each in answers], reasons(asked, found))
    sys.stdout.flush()
    return 0 if chosen else 1


def reasons(asked: OwnQuestion, found: OwnFound) -> list[str]:
    """Return why some ways aren't predicted, and by which commands they would be."""
    said = list(found.lines)
    groups: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(each.strategy["name"] for each in found.unprofiled):
        for sweep in _sweeps([each for each in found.unprofiled if each.strategy["name"] == name]):
            # What has its default needs no word.
            plain = {"microbatches": [1], "batch_shares": ["equal"]}
            words = [
                f"{key}={','.join(map(str, every))}"
                for key, every in sweep.items()
                if every != plain.get(key)
            ]
            place = (shlex.join(asked.words_on(max(sweep["workers"]))), shlex.join(words))
            groups.setdefault(place, []).append(name)
    for (given, words_), names in groups.items():
        command = f"{given} strategy={','.join(names)} {words_}"
        said.append(
            f"{', '.join(names)}: the profile doesn't tell of such steps, as they are now; "
            f"`python -m src.profile {command}` adds them"
        )
    return said


SWEPT = ("workers", "batch", "microbatches", "batch_shares")


def _sweeps(configs: Sequence[Config]) -> list[dict[str, list[Any]]]:
    """Return the values of sweeps over `SWEPT` that have these configurations of a strategy, and no others.

    A sweep has every value of a key with every one of the others: some of these may be refused.
    """
    places = [tuple(getattr(each, key) for key in SWEPT) for each in configs]
    for split in range(len(SWEPT) + 1):
        alike: dict[Any, list[tuple[Any, ...]]] = {}
        for place in places:
            alike.setdefault(place[:split], []).append(place)
        sweeps = [
            {key: [*dict.fromkeys(place[at] for place in own)] for at, key in enumerate(SWEPT)}
            for own in alike.values()
        ]
        if sum(math.prod(map(len, sweep.values())) for sweep in sweeps) == len({*places}):
            break
    return sweeps


@dataclass(frozen=True)
class Answer:
    """The answer for a batch, or for all that compare, which is then `None`; `alone` is one device."""

    batch: int | None
    choice: Choice[OwnWay]
    alone: OwnWay | None


def _answer(batch: int | None, asked: OwnQuestion, found: OwnFound) -> Answer:
    alike = [each for each in found.ways if batch is None or each.batch == batch]
    aim = asked.objective.aim.name
    choice = choose(alike, aim, Limits(asked.objective.hours, asked.most_cost))
    alone = max((each for each in alike if each.devices == 1), key=lambda each: each.value(aim), default=None)
    return Answer(batch, choice, alone)


def sentences(answer: Answer, asked: OwnQuestion, found: OwnFound, past: Sequence[Entry]) -> list[str]:
    """Return the answer for a batch in sentences."""
    choice = answer.choice
    if choice.chosen is None:
        reasons_ = refused(choice)
        return ["Nothing can be chosen.", *reasons_] if reasons_ else ["Nothing can be predicted."]
    chosen = choice.chosen
    alone = answer.alone
    other = alone is not None and alone.batch != chosen.batch
    at_batch = f" at batch {alone.batch}" if alone is not None and other else ""
    said = opening(choice, alone, lambda each: _figures(each, asked), at_batch)
    said += _learning(answer, asked)
    said += _why(chosen)
    said += others(choice, lambda each: _figures(each, asked))
    said.append(_evidence(chosen, found, past))
    if found.evidence is not None and chosen.target is not None:
        divided = chosen.devices * chosen.config.microbatches > 1
        said.append(found.evidence.sentence(chosen.batch, divided=divided))
    said.append(_next_step(answer, found))
    return said


def _figures(way: OwnWay, asked: OwnQuestion) -> str:
    low, high = way.interval
    basis = f"measured in {len(way.folders)} run{'s'[: len(way.folders) > 1]}" if way.folders else "predicted"
    said = f"{number(way.rate)} samples/s ({number(low)} to {number(high)}), {basis}"
    if way.cost is not None and asked.objective.prices is not None:
        said += f", {way.cost:.3g} {asked.objective.prices.currency}"
    if way.cost is not None or way.target is not None or asked.objective.hours is not None:
        said += (
            f", {span(way.hours, way.hours_interval)} {'in all' if way.target is None else 'to the target'}"
        )
    return said


def _learning(answer: Answer, asked: OwnQuestion) -> list[str]:
    """Say that a choice doesn't learn as one device does, and what is best of those that do."""
    chosen = answer.choice.chosen
    if chosen is None or not own_ways.learns_otherwise(chosen.config):
        return []
    others = [*answer.choice.tied, *answer.choice.behind]
    alike = next((each for each in others if not own_ways.learns_otherwise(each.config)), None)
    best = f"; the best that does is {alike.name}: {_figures(alike, asked)}" if alike is not None else ""
    return [f"It doesn't learn as one device does, and may need more samples{best}."]


def _why(chosen: OwnWay) -> list[str]:
    said = []
    if chosen.bound == "input":
        said.append("Reading data binds it: devices wait for their input, and more of them won't help.")
    if chosen.parts is not None:
        said.append(
            f"A step takes {1e3 * chosen.seconds:.4g} ms, by the profile {of_step(chosen.parts, REST)}."
        )
    return said


def _evidence(chosen: OwnWay, found: OwnFound, past: Sequence[Entry]) -> str:
    """Say on what a choice rests, and how far off predictions of its kind have been."""
    without = ""
    if found.disturbed:
        runs_ = "run" if found.disturbed == 1 else "runs"
        without = f"; {found.disturbed} {runs_} that other processes disturbed count for nothing"
    if chosen.folders:
        return f"It rests on {', '.join(chosen.folders)}{without}."
    if not found.calibrating:
        base = "It rests on the profile alone: no run calibrates it"
    else:
        several = "configuration" if found.calibrating == 1 else "configurations"
        base = f"It is predicted from the profile, calibrated by runs of {found.calibrating} {several}"
        base += "" if chosen.basis == "calibrated" else ", none of this strategy and model"
    return f"{base}{without}; {chosen.called}: {ledger.so_far(past, chosen.called)}."


def _next_step(answer: Answer, found: OwnFound) -> str:
    """Say which run would tell most: of the choice, or of what comes nearest to it."""
    chosen = answer.choice.chosen
    assert chosen is not None
    others = [*answer.choice.tied, *answer.choice.behind]
    wanted = [each for each in (chosen, *others[:1]) if not each.folders]
    if not wanted:
        again = " and ".join(f"`{typed(each, found)}`" for each in (chosen, *others[:1]))
        return f"Would tell most: repetitions of {again}."
    shown = " and ".join(f"`{typed(each, found)}`" for each in wanted)
    return f"Would tell most: {'a run of each of ' if wanted[1:] else ''}{shown}."


def typed(way: OwnWay, found: OwnFound) -> str:
    """Return the command that trains so, for as long as that takes."""
    words = [*way.words]
    if found.evidence is not None and way.target is not None:
        words += found.evidence.words(way.batch, words)
    words += max_minutes(words, way.hours_interval[1])
    return f"python -m src.train {shlex.join(words)}"


def _entry(chosen: OwnWay) -> Entry:
    """Return a choice as the ledger has it."""
    return Entry(
        command=COMMAND,
        kind=chosen.called,
        what=Path(chosen.config.out).name,
        signature=runs.signature(chosen.config),
        unit="seconds",
        basis=chosen.basis,
        predicted=chosen.seconds,
        low=chosen.seconds * math.exp(-chosen.width),
        high=chosen.seconds * math.exp(chosen.width),
    )


def _print(answer: Answer, asked: OwnQuestion, found: OwnFound, past: Sequence[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    choice = answer.choice
    console.print(f"{_title(answer, asked, found)}:", soft_wrap=True)
    for sentence in sentences(answer, asked, found, past):
        console.print(f"  {sentence}", soft_wrap=True)
    if choice.chosen is None:
        return
    console.print(f"  Type: {typed(choice.chosen, found)}", soft_wrap=True)
    objective = asked.objective
    timed = any(each is not None for each in (objective.prices, objective.hours, found.evidence))
    titles = ["devices", "way", "samples/s", f"{100 * LEVEL:.0f} % interval", "basis"]
    table = Table(*titles, *(["time"] if timed else []), title="All ways, the best first", box=None)
    every = [choice.chosen, *choice.tied, *choice.behind]
    for each in sorted(every, key=lambda each: -each.value(choice.aim)):
        low, high = each.interval
        name = each.name.replace(f" on {each.devices} devices", "")
        cells = [
            str(each.devices),
            name,
            f"{number(each.rate)}",
            f"{number(low)} to {number(high)}",
            each.basis,
        ]
        table.add_row(*cells, *([duration(each.hours)] if timed else []))
    console.print(table)


def _title(answer: Answer, asked: OwnQuestion, found: OwnFound) -> str:
    batches = answer.batch or " or ".join(map(str, batches_of(answer.choice) or asked.batches))
    most = max(asked.devices)
    subject = f"{found.subject}, " if found.subject else ""
    return f"{subject}batch {batches}, on up to {most} devices, for {answer.choice.aim}"


def _section(answer: Answer, asked: OwnQuestion, found: OwnFound, past: Sequence[Entry]) -> Section:
    """Return an answer as a page has it."""
    from src.recommend.page import Section, Shown

    choice = answer.choice
    every = [*([choice.chosen] if choice.chosen else []), *choice.tied, *choice.behind]
    ways = [
        Shown(
            each.strategy,
            each.name,
            each.devices,
            each.rate,
            *each.interval,
            predicted=None if each.parts is None else each.batch / each.parts.seconds,
            measured=bool(each.folders),
            burdens=(("time", duration(each.hours)), ("basis", each.basis)),
        )
        for each in sorted(every, key=lambda each: -each.value(choice.aim))
    ]
    chosen = choice.chosen
    return Section(
        _title(answer, asked, found),
        sentences(answer, asked, found, past),
        "" if chosen is None else typed(chosen, found),
        "" if chosen is None else chosen.name,
        ways,
    )


def _as_json(answer: Answer, asked: OwnQuestion, found: OwnFound, past: Sequence[Entry]) -> dict[str, Any]:
    """Return an answer for programs, in seconds and hours, with its sentences."""

    def shown(each: OwnWay) -> dict[str, Any]:
        low, high = each.interval
        return {
            "name": each.name,
            "strategy": each.strategy,
            "devices": each.devices,
            "batch": each.batch,
            "microbatches": each.config.microbatches,
            "batch_shares": each.config.batch_shares,
            "seconds": each.seconds,
            "parts": None if each.parts is None else vars(each.parts),
            "basis": each.basis,
            "runs": list(each.folders),
            "bound": each.bound,
            "samples_per_second": each.rate,
            "low": low,
            "high": high,
            "hours": each.hours,
            "hours_interval": each.hours_interval,
            "steps_to_target": None if each.target is None else vars(each.target.steps),
            "learns_otherwise": own_ways.learns_otherwise(each.config),
            "cost": each.cost,
            "command": typed(each, found),
        }

    choice = answer.choice
    return {
        "batch": answer.batch,
        "aim": choice.aim,
        "limits": limits_of(asked.objective, asked.most_cost),
        "currency": None if asked.objective.prices is None else asked.objective.prices.currency,
        "chosen": None if choice.chosen is None else shown(choice.chosen),
        "one_device": None if answer.alone is None else shown(answer.alone),
        "as_good": [shown(each) for each in choice.tied],
        "behind": [shown(each) for each in choice.behind],
        "front": [shown(each) for each in choice.front],
        "refused": list(choice.refused),
        "sentences": sentences(answer, asked, found, past),
    }

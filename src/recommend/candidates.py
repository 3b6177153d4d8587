"""Predict every way of dividing a training over devices that nobody has: copies, shards, parts and stages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from src.config import ConfigError, OwnCodeError
from src.config.run_config import Degrees
from src.data import prepared
from src.launch.supervise import inspection
from src.predict import dry_runs, held, side_by_side
from src.predict.asked import HYBRID, Asked
from src.predict.held import MARGIN
from src.predict.looked import LookedPipeline, Stages
from src.predict.memory import GIB, RESERVED_GIB
from src.predict.mesh_steps import Copy
from src.predict.side_by_side import ORDER, Job, Pool
from src.recommend import to_target
from src.recommend.candidate import Candidate
from src.recommend.question import Question
from src.recommend.space import COPIED, SCHEDULE, Space
from src.recommend.to_target import Evidence
from src.recommend.words import without

STAGE_CHOICES = "src.predict.stage_choices.looked_at"
# Copies of what has shards or parts need no look of their own.
KINDS = ("tensor_parallel", "fsdp", "ddp", "single")
# By the kind of copies, and for layers that are split among how many devices.
Copies = dict[tuple[str, int], Copy]


@dataclass
class Found:
    """The ways that were predicted, and why others could not be, a line each.

    `subject` is what trains, and `evidence` what is known of its steps to a target.
    """

    subject: str = ""
    candidates: list[Candidate] = field(default_factory=list)
    lines: dict[str, str] = field(default_factory=dict)
    evidence: Evidence | None = None

    def add_reason(self, kind: str, reason: object) -> None:
        """Add why a kind of way can't be predicted; reasons that differ in numbers alone are one."""
        line = f"{kind}: {str(reason).removeprefix(f'strategy={kind.split()[0]}: ')}"
        self.lines.setdefault(re.sub(r"\d+", "", line), line)

    @property
    def reasons(self) -> list[str]:
        """Return the reasons."""
        return [*self.lines.values()]


def of(question: Question) -> Found:
    """Predict every way of dividing the work.

    Raises:
        ConfigError: for a mistake in the words.
    """
    words = (*question.devices.words, f"batch={min(question.batches)}")
    asked = replace(question.devices, words=words, strategies=("single",), named=True)
    composed, _ = held.composed(asked)
    config = composed["single"]
    arrays = prepared.load(config.dataset)
    if (most := max(question.batches)) > arrays.train_samples:
        raise ConfigError(f"batch={most}: the dataset has {arrays.train_samples} samples")
    usable = (question.room_gib - RESERVED_GIB) * GIB / (1 + MARGIN)
    # What an epoch leaves over is less than a batch.
    samples = float(config.epochs * arrays.train_samples)
    found = Found(f"{config.model['name']} on {config.dataset['name']}")
    if question.steps_from is not None:
        found.evidence = to_target.read(question.steps_from, config, arrays.train_samples)
        question = _told(question, found.evidence, found)
    space = Space(question, config, usable, samples, evidence=found.evidence)
    # They begin while configurations are composed.
    with side_by_side.processes(len(ORDER) if _divides(question) else 1) as pool:
        return _predicted(space, asked, found, pool)


def _told(question: Question, evidence: Evidence, found: Found) -> Question:
    """Return a question without the batches of which no steps are known, where steps compare batches.

    Raises:
        ConfigError: where they are known of none.
    """
    reasons = {batch: why for batch in question.batches if (why := evidence.untold(batch))}
    found.lines.update((why, why) for why in reasons.values())
    if not question.over_batches:
        return question
    told = tuple(batch for batch in question.batches if batch not in reasons)
    if not told:
        raise ConfigError(next(iter(reasons.values())))
    return replace(question, batches=told)


def _divides(question: Question) -> bool:
    """Return whether there are ways on several devices."""
    return max(question.devices.devices) > 1 and question.strategies != ("single",)


def _predicted(space: Space, asked: Asked, found: Found, pool: Pool | None) -> Found:
    """Add every way to what is found, and return it; processes of a pool look, where there is one.

    Raises:
        ConfigError: for a mistake in the words.
    """
    question = space.question
    copied = [kind for kind in COPIED if _has_copies(kind, asked, question, found)]
    space = replace(space, copied=frozenset(copied))
    kinds = [kind for kind in KINDS if _wanted(kind, question) and _is_taken(kind, asked, question, found)]
    looks = _looks(space, kinds, asked, found, 1, pool)
    alone = looks.get(("single", 0))
    if alone is None or isinstance(alone.one.traces, str):
        # What doesn't go with samples on one device doesn't on several.
        if alone is not None:
            found.add_reason("single", alone.one.traces)
        return Found(found.subject, lines=found.lines, evidence=found.evidence)
    short = kinds if question.microbatches is not None else _copies(space, looks, found, several=False)
    short = kinds if question.least_memory else short
    if short and question.microbatches != 1:
        # Where whole parts of a batch don't fit, several micro-batches may.
        second = _looks(space, short, asked, found, 2, pool)
        both = {key: Copy(looks[key].one, copy.one) for key, copy in second.items() if key in looks}
        _copies(space, both, found, several=True)
    elif question.microbatches == 1:
        _copies(space, looks, found, several=False)
    had = {(each.batch, each.devices) for each in found.candidates}
    if _divides(question):
        found.lines |= {line: line for line in without(question.batches, question.devices.devices, had)}
    return found


def _wanted(kind: str, question: Question) -> bool:
    """Return whether a kind of copies is to be looked at."""
    mixed = HYBRID in question.strategies and kind in ("fsdp", "tensor_parallel")
    several = max(question.devices.devices) > 1
    return kind == "single" or (several and (kind in question.strategies or mixed))


def _is_taken(kind: str, asked: Asked, question: Question, found: Found) -> bool:
    """Return whether a run of a strategy takes a model of the user's own; add to what is found why not.

    Raises:
        ConfigError: for a model that one device doesn't take.
    """
    return _is_accepted(asked.words, kind, 1 if kind == "single" else 2, kind, question, found)


def _has_copies(kind: str, asked: Asked, question: Question, found: Found) -> bool:
    """Return whether a run of copies of a strategy's shards, parts or stages takes such a model."""
    words = (*asked.words, f"strategy.{COPIED[kind]}=2")
    if HYBRID not in question.strategies or max(question.devices.devices) < 4:
        return False
    return _is_accepted(words, HYBRID, 4, f"copies of {kind}", question, found)


def _is_accepted(
    words: Sequence[str], strategy: str, devices: int, kind: str, question: Question, found: Found
) -> bool:
    samples = max(dry_runs.SAMPLES[0], min(question.batches) // 2)
    parts = 2 if "pipeline" in kind else 1
    try:
        config = dry_runs.config_of(words, strategy, devices, samples, parts)
        if inspection.has_own(config):
            # As before a training: what is refused then is no way to choose.
            inspection.inspect([config])
    except (ConfigError, OwnCodeError) as error:
        if kind == "single":
            raise
        found.add_reason(kind, error)
        return False
    return True


def _looks(
    space: Space, kinds: Sequence[str], asked: Asked, found: Found, microbatches: int, pool: Pool | None
) -> Copies:
    """Look at copies of each kind with so many micro-batches, and once at pipelines."""
    jobs: dict[str, Job] = {}
    counts = {"single": [1], "ddp": [2], "fsdp": [2], "tensor_parallel": space.parts()}
    wanted = list(space.pipelines()) if microbatches == 1 else []
    if wanted and _is_taken("pipeline", asked, space.question, found):
        staged = ("strategy.pipeline=2", f"strategy.schedule={SCHEDULE}", "strategy.tied=reduce")
        try:
            # With no room at all what holds least is kept.
            room = 0.0 if space.question.least_memory else space.room
            base = dry_runs.config_of((*asked.words, *staged), HYBRID, 2, 2, 2)
            jobs["pipeline"] = Job(STAGE_CHOICES, (space.question.devices, base, wanted, room))
        except ConfigError as error:
            found.add_reason("pipeline", error)
    for kind in kinds:
        if not counts[kind]:
            continue
        own = replace(asked, strategies=(kind,), straight=kind != "single")
        try:
            config = dry_runs.config_of(own.words, kind, counts[kind][0], 2, microbatches)
        except ConfigError as error:
            # What one can't have others may, but what one device can't have is a mistake.
            if kind == "single":
                raise
            found.add_reason(kind, error)
            continue
        jobs[kind] = Job(f"{side_by_side.LOOKS}.looked_at", (own, kind, counts[kind], config))
    looks: Copies = {}
    for kind, every in side_by_side.every(jobs, pool):
        if kind == "pipeline":
            _stages(space, every, found)
            continue
        fails = all(isinstance(looked, str) for _, looked in every)
        for count, looked in every:
            if isinstance(looked, str):
                # Layers that can't be split among so many devices may be among fewer.
                found.add_reason(kind if fails else f"{kind} in {count} parts", looked)
            else:
                looks[kind, count if kind == "tensor_parallel" else 0] = Copy(looked)
    return looks


def _stages(space: Space, every: Sequence[tuple[Stages, LookedPipeline | str]], found: Found) -> None:
    """Add the pipelines that were looked at to what is found."""
    for wanted, choice in every:
        copies = wanted.devices // wanted.pipeline
        if isinstance(choice, str):
            found.add_reason("pipeline", choice)
            continue
        made = Candidate(
            degrees=Degrees(data=copies, pipeline=wanted.pipeline),
            batch=wanted.batch,
            microbatches=choice.microbatches,
            samples=wanted.batch // (copies * choice.microbatches),
            parts=choice.parts,
            held=choice.held,
            at_start=choice.at_start,
            room=space.room,
            samples_asked=space.samples,
            price=space.question.price(),
            watts=space.question.watts,
            target=space.targets.get(wanted.batch),
            recompute=choice.recompute,
        )
        found.candidates.append(made)


def _copies(space: Space, looks: Mapping[tuple[str, int], Copy], found: Found, *, several: bool) -> list[str]:
    """Add all meshes of copies to what is found; return the kinds of which some don't fit."""
    short: dict[str, None] = {}
    for (kind, parts), copy in looks.items():
        for degrees in space.meshes(kind):
            if kind == "tensor_parallel" and degrees.tensor != parts:
                continue
            for batch in space.question.batches:
                if several and space.question.least_memory:
                    found.candidates += _every(space, copy, degrees, batch)
                    continue
                there = [each for each in found.candidates if (each.degrees, each.batch) == (degrees, batch)]
                if any(each.fits for each in there):
                    continue
                made = None
                for count in space.counts(batch, degrees, several=several):
                    further = _candidate(space, copy, degrees, batch, count)
                    if isinstance(further, str):
                        # Fewer samples aren't possible, either.
                        if made is None and not there:
                            found.add_reason(kind, further)
                        break
                    made = further
                    if made.fits:
                        break
                if made is None:
                    continue
                found.candidates[:] = [each for each in found.candidates if each not in there]
                found.candidates.append(made)
                if not made.fits:
                    short[kind] = None
    return list(short)


def _every(space: Space, copy: Copy, degrees: Degrees, batch: int) -> Iterator[Candidate]:
    """Yield a mesh of copies with each number of micro-batches, two at least, that can be predicted."""
    for count in space.counts(batch, degrees, several=True):
        made = _candidate(space, copy, degrees, batch, count)
        if isinstance(made, str):
            return
        yield made


def _candidate(space: Space, copy: Copy, degrees: Degrees, batch: int, microbatches: int) -> Candidate | str:
    """Predict a mesh of copies; return why where that can't be."""
    samples = batch // (degrees.batch * microbatches)
    if samples == 1 and copy.one.batchnorm:
        return f"batch={batch} leaves one sample, and BatchNorm needs several"
    try:
        row = space.row(degrees, batch, samples)
        parts = copy.parts(row, degrees, samples, microbatches)
        held = copy.held(degrees, samples, microbatches)
    except ConfigError as error:
        return str(error)
    return Candidate(
        degrees=degrees,
        batch=batch,
        microbatches=microbatches,
        samples=samples,
        parts=parts,
        held=held,
        at_start=copy.at_start(),
        room=space.room,
        samples_asked=space.samples,
        price=space.question.price(),
        watts=space.question.watts,
        target=space.targets.get(batch),
    )

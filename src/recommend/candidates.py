"""Predict every way of dividing a training over devices that nobody has: copies, shards, parts and stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from src.config import Config, ConfigError
from src.config.run_config import Degrees
from src.data import prepared
from src.predict import dry_runs, held, sheets, side_by_side
from src.predict.asked import HYBRID, Asked
from src.predict.held import MARGIN
from src.predict.looked import Choice, Stages
from src.predict.memory import GIB, RESERVED_GIB
from src.predict.mesh_steps import Copy
from src.predict.row import Row, parse
from src.predict.side_by_side import Job
from src.recommend.candidate import Candidate
from src.recommend.question import Question

# Micro-batches for each stage of a pipeline: fewer leave stages idle, more have few samples.
EACH_STAGE = (1, 2, 4, 8)
STAGE_CHOICES = "src.predict.stage_choices.looked_at"
# Copies of what has shards or parts need no look of their own.
KINDS = ("tensor_parallel", "fsdp", "ddp", "single")


@dataclass
class Found:
    """The ways that were predicted, and why others could not be, a line each."""

    candidates: list[Candidate] = field(default_factory=list)
    reasons: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Space:
    """The ways that may be chosen.

    Attributes:
        question: what is asked.
        config: of a run on one device.
        room: bytes that a device has for a step.
        samples: of the whole training.
    """

    question: Question
    config: Config
    room: float
    samples: float

    @property
    def per_node(self) -> int:
        """Return how many devices a node has."""
        asked = self.question.devices
        return asked.per_node or sheets.device(asked.hardware).node

    def meshes(self, kind: str) -> Iterator[Degrees]:
        """Yield the meshes of a kind of copies: `single`, `ddp`, `fsdp` or `tensor_parallel`."""
        named = self.question.strategies
        for count in self.question.devices.devices:
            if kind == "single" and count == 1:
                yield Degrees()
            elif kind == "ddp" and count > 1:
                yield Degrees(data=count)
            elif kind == "fsdp" and count > 1:
                if kind in named:
                    yield Degrees(shard=count)
                if HYBRID in named and count > self.per_node and count % self.per_node == 0:
                    yield Degrees(shard=self.per_node, data=count // self.per_node)
            elif kind == "tensor_parallel" and count > 1:
                for parts in self.parts():
                    mixed = parts < count
                    if count % parts == 0 and (HYBRID if mixed else kind) in named:
                        yield Degrees(tensor=parts, data=count // parts)

    def parts(self) -> list[int]:
        """Return into how many parts layers may be split: powers of two within a node."""
        most = min(max(self.question.devices.devices), self.per_node)
        return [2**power for power in range(1, 15) if 2**power <= most]

    def pipelines(self) -> Iterator[Stages]:
        """Yield the pipelines, and copies of them."""
        asked, named = self.question, self.question.strategies
        for batch in asked.batches:
            for count in asked.devices.devices:
                for stages in (2**power for power in range(1, 15)):
                    mixed = stages < count
                    if count % stages or (HYBRID if mixed else "pipeline") not in named:
                        continue
                    counts = [each * stages for each in EACH_STAGE]
                    wanted = [asked.microbatches] if asked.microbatches else counts
                    copies = count // stages
                    fitting = tuple(m for m in wanted if m and batch % (copies * m) == 0)
                    if fitting:
                        yield Stages(count, stages, batch, fitting)


def of(question: Question) -> Found:
    """Predict every way of dividing the work.

    Raises:
        ConfigError: for a mistake in the words.
    """
    kinds = [kind for kind in KINDS if _wanted(kind, question)]
    asked = replace(
        question.devices,
        words=(*question.devices.words, "microbatches=1"),
        strategies=("single",),
        named=True,
    )
    composed, _ = held.composed(asked)
    config = composed["single"]
    arrays = prepared.load(config.dataset)
    usable = (question.room_gib - RESERVED_GIB) * GIB / (1 + MARGIN)
    if (most := max(question.batches)) > arrays.train_samples:
        raise ConfigError(f"batch={most}: the dataset has {arrays.train_samples} samples")
    # What an epoch leaves over is less than a batch.
    space = Space(question, config, usable, float(config.epochs * arrays.train_samples))
    found = Found()
    looks = _looks(space, kinds, asked, found)
    short = _copies(space, looks, found)
    if short and question.microbatches is None:
        # Where whole parts of a batch don't fit, several micro-batches may.
        second = _looks(space, short, _with_microbatches(asked, 2), found, pipelines=False)
        both = {key: Copy(looks[key].one, copy.one) for key, copy in second.items() if key in looks}
        _copies(space, both, found, several=True)
    return found


def _wanted(kind: str, question: Question) -> bool:
    """Return whether a kind of copies is to be looked at; one device tells what the others gain."""
    if kind == "single":
        return 1 in question.devices.devices or "single" in question.strategies
    mixed = HYBRID in question.strategies and kind in ("fsdp", "tensor_parallel")
    return max(question.devices.devices) > 1 and (kind in question.strategies or mixed)


def _with_microbatches(asked: Asked, count: int) -> Asked:
    kept = (word for word in asked.words if not word.startswith("microbatches="))
    return replace(asked, words=(*kept, f"microbatches={count}"))


def _looks(
    space: Space, kinds: Sequence[str], asked: Asked, found: Found, *, pipelines: bool = True
) -> dict[tuple[str, int], Copy]:
    """Return looks at copies of each kind, by how many devices one is on; add pipelines to what is found."""
    jobs: dict[str, Job] = {}
    counts = {"single": [1], "ddp": [2], "fsdp": [2], "tensor_parallel": space.parts()}
    microbatches = 1 if pipelines else 2
    wanted = list(space.pipelines()) if pipelines else []
    if wanted:
        staged = (*asked.words, "strategy.pipeline=2", "strategy.schedule=1f1b", "strategy.tied=reduce")
        try:
            base = dry_runs.config_of(staged, HYBRID, 2, 2, 2)
            jobs["pipeline"] = Job(STAGE_CHOICES, (space.question.devices, base, wanted, space.room))
        except ConfigError as error:
            found.reasons[f"pipeline: {error}"] = None
    for kind in kinds:
        own = replace(asked, strategies=tuple(kinds[::-1]))
        config = dry_runs.config_of(own.words, kind, counts[kind][0], 2, microbatches)
        jobs[kind] = Job(f"{side_by_side.LOOKS}.looked_at", (own, kind, counts[kind], config))
    looks: dict[tuple[str, int], Copy] = {}
    for kind, every in side_by_side.every(jobs):
        if kind == "pipeline":
            _stages(space, every, found)
            continue
        for count, looked in every:
            if isinstance(looked, str):
                found.reasons[f"{kind}: {looked}"] = None
            else:
                looks[kind, count if kind == "tensor_parallel" else 0] = Copy(looked)
    return looks


def _stages(space: Space, every: Sequence[tuple[Stages, Choice | str]], found: Found) -> None:
    for wanted, choice in every:
        copies = wanted.devices // wanted.pipeline
        if isinstance(choice, str):
            found.reasons[f"pipeline: {choice}"] = None
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
            recompute=wanted.recompute,
            price=space.question.price(),
        )
        found.candidates.append(made)


def _copies(
    space: Space, looks: Mapping[tuple[str, int], Copy], found: Found, *, several: bool = False
) -> list[str]:
    """Add all meshes of copies to what is found; return the kinds of which some fit with no whole batch."""
    short: dict[str, None] = {}
    for kind, parts in looks:
        copy = looks[kind, parts]
        for degrees in space.meshes(kind):
            if kind == "tensor_parallel" and degrees.tensor != parts:
                continue
            for batch in space.question.batches:
                made = None
                for count in _counts(space.question, batch, degrees, several=several):
                    made = _candidate(space, copy, degrees, batch, count, found)
                    if made is None or made.fits:
                        break
                if made is None:
                    continue
                if several:
                    alike = [each for each in found.candidates if _place(each) == _place(made)]
                    if any(each.fits for each in alike):
                        continue
                    found.candidates[:] = [each for each in found.candidates if each not in alike]
                found.candidates.append(made)
                if not made.fits and batch // degrees.batch > 1:
                    short[kind] = None
    return list(short)


def _place(candidate: Candidate) -> tuple[Degrees, int]:
    return candidate.degrees, candidate.batch


def _counts(question: Question, batch: int, degrees: Degrees, *, several: bool) -> Sequence[int]:
    """Return the numbers of micro-batches that are tried, the fewest first."""
    if question.microbatches is not None:
        counts = [question.microbatches] if several == (question.microbatches > 1) else []
    else:
        counts = [2**power for power in range(1, 11)] if several else [1]
    return [count for count in counts if batch % (degrees.batch * count) == 0]


def _candidate(
    space: Space, copy: Copy, degrees: Degrees, batch: int, microbatches: int, found: Found
) -> Candidate | None:
    samples = batch // (degrees.batch * microbatches)
    try:
        row = row_of(space, degrees, batch, samples)
        parts = copy.parts(row, degrees, samples, microbatches)
        held = copy.held(degrees, samples, microbatches)
    except ConfigError as error:
        found.reasons[f"{'x'.join(str(n) for n in vars(degrees).values())}: {error}"] = None
        return None
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
    )


def row_of(space: Space, degrees: Degrees, batch: int, samples: int) -> Row:
    """Return a mesh as a table has it; raise `ConfigError` where it can't be laid out."""
    asked, config = space.question.devices, space.config
    return parse(
        {
            "device": asked.hardware,
            "devices": str(math.prod(vars(degrees).values())),
            "devices_per_node": "" if asked.per_node is None else str(asked.per_node),
            "network": asked.network or "",
            "framework": "pytorch",
            "precision": config.precision,
            "model": str(config.model["name"]),
            "global_batch": str(batch),
            "micro_batch": str(samples),
            **{name: str(degree) for name, degree in vars(degrees).items()},
        }
    )

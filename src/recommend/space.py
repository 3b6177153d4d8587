"""List the ways of dividing a training over devices that nobody has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from src.config import Config
from src.config.run_config import Degrees
from src.config.schedules import refusal
from src.predict.asked import HYBRID
from src.predict.looked import Stages
from src.predict.row import Row, parse
from src.recommend.candidate import Target
from src.recommend.question import Question
from src.recommend.to_target import Evidence

# Micro-batches for each stage of a pipeline: fewer leave stages idle, more have few samples.
EACH_STAGE = (1, 2, 4, 8)
SCHEDULE = "1f1b"
MOST_MICROBATCHES = 1024
# By the strategy, the axis of a mesh along which it divides a model; others may be copies.
COPIED = {"fsdp": "shard", "tensor_parallel": "tensor", "pipeline": "pipeline"}


@dataclass(frozen=True)
class Space:
    """The ways that may be chosen.

    Attributes:
        question: what is asked.
        config: of a run on one device.
        room: bytes that a device has for a step.
        samples: of the whole training.
        copied: strategies whose shards, parts or stages may have copies.
        evidence: of the steps to a target; `None` without any.
    """

    question: Question
    config: Config
    room: float
    samples: float
    copied: frozenset[str] = frozenset(COPIED)
    evidence: Evidence | None = None

    @property
    def per_node(self) -> int:
        """Return how many devices a node has."""
        return self.question.devices.devices_of_a_node

    @cached_property
    def targets(self) -> Mapping[int, Target]:
        """Return the steps to the target by batch; nothing where a training is of so many samples."""
        if self.evidence is None:
            return {}
        told = (batch for batch in self.question.batches if not self.evidence.untold(batch))
        return {batch: self.evidence.target(batch) for batch in told}

    def meshes(self, kind: str) -> Iterator[Degrees]:
        """Yield the meshes of a kind of copies: `single`, `ddp`, `fsdp` or `tensor_parallel`."""
        named, per_node = self.question.strategies, self.per_node
        if kind == "single":
            # What several devices gain is told by one.
            yield Degrees()
            return
        for count in (each for each in self.question.devices.devices if each > 1):
            if kind == "ddp":
                yield Degrees(data=count)
            elif kind == "fsdp":
                if kind in named:
                    yield Degrees(shard=count)
                if self.has_copies(kind) and 1 < per_node < count and count % per_node == 0:
                    yield Degrees(shard=per_node, data=count // per_node)
            else:
                for parts in self.parts():
                    may = self.has_copies(kind) if parts < count else kind in named
                    if count % parts == 0 and may:
                        yield Degrees(tensor=parts, data=count // parts)

    def has_copies(self, kind: str) -> bool:
        """Return whether a strategy's shards, parts or stages may have copies."""
        return HYBRID in self.question.strategies and kind in self.copied

    def parts(self) -> list[int]:
        """Return into how many parts layers may be split: powers of two that divide a node."""
        most = min(max(self.question.devices.devices), self.per_node)
        powers = [2**power for power in range(1, 15) if 2**power <= most]
        return [each for each in powers if self.per_node % each == 0]

    def pipelines(self) -> Iterator[Stages]:
        """Yield the pipelines, and copies of them: a node has whole stages, or a stage has whole nodes."""
        asked, named = self.question, self.question.strategies
        for batch in asked.batches:
            for count in asked.devices.devices:
                for stages in (2**power for power in range(1, 15)):
                    may = self.has_copies("pipeline") if stages < count else "pipeline" in named
                    if count % stages or not may:
                        continue
                    copies = count // stages
                    if count > self.per_node and self.per_node % copies and copies % self.per_node:
                        continue
                    counts = [each * stages for each in EACH_STAGE]
                    wanted = [asked.microbatches] if asked.microbatches else counts
                    fitting = tuple(
                        each
                        for each in wanted
                        if batch % (copies * each) == 0 and not refusal(SCHEDULE, stages, 1, each)
                    )
                    if fitting:
                        yield Stages(count, stages, batch, fitting)

    def counts(self, batch: int, degrees: Degrees, *, several: bool) -> list[int]:
        """Return the numbers of micro-batches that copies may have, the fewest first; several, or one."""
        part, left = divmod(batch, degrees.batch)
        if left:
            return []
        wanted = self.question.microbatches
        if wanted is not None:
            return [wanted] if several == (wanted > 1) and part % wanted == 0 else []
        most = min(part, MOST_MICROBATCHES)
        return [count for count in range(2, most + 1) if part % count == 0] if several else [1]

    def row(self, degrees: Degrees, batch: int, samples: int) -> Row:
        """Return a mesh as a table has it; raise `ConfigError` where it can't be laid out."""
        asked, config = self.question.devices, self.config
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

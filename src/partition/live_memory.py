"""Predict the bytes of live tensors over a step: add up what its passes make and free, one by one."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from src.measure.live_bytes import PARTS
from src.measure.live_step import LiveBytes
from src.partition.schedules.actions import Action, Kind

GRADIENTS = PARTS.index("gradients")


def parts(**sizes: float) -> np.ndarray:
    """Return bytes by part, in the order of `PARTS`; those that aren't named are 0."""
    return np.array([float(sizes.get(part, 0.0)) for part in PARTS])


@dataclass(frozen=True)
class PassBytes:
    """The changes that a pass of one micro-batch makes, in bytes by part.

    Attributes:
        most: the change since its beginning, at the moment when most is live.
        after: the change at its end.
    """

    most: np.ndarray
    after: np.ndarray


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """The passes of one stage, or of a whole model, and what crosses its boundaries for one micro-batch.

    Attributes:
        passes: by kind, whether the forward pass is computed again for the backward pass, and whether the
            pass is the stage's first of a step, whose gradients later ones are added to.
        trained: names of the parameters that get a gradient.
        output, sent_back: bytes of what its forward pass returns, and of the gradients that it hands back.
        kept, kept_back: those of them that it hasn't been given by another stage, and only hands on.
        received: bytes of the buffers that it receives a micro-batch and its gradients into.
        received_back: those of them that are of gradients.
    """

    passes: Mapping[tuple[Kind, bool, bool], PassBytes]
    trained: frozenset[str] = frozenset()
    output: float = 0.0
    sent_back: float = 0.0
    kept: float = 0.0
    kept_back: float = 0.0
    received: float = 0.0
    received_back: float = 0.0


@dataclass
class Step:
    """A step that is added up pass by pass.

    Attributes:
        level: bytes by part that are live now [parts].
        rows: those that were live [moments][parts].
    """

    level: np.ndarray
    rows: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows.append(self.level.copy())

    def add(self, done: PassBytes, *changes: np.ndarray) -> None:
        """Add a pass, at whose end there are further changes."""
        self.rows.append(self.level + done.most)
        self.change(done.after, *changes)

    def change(self, *changes: np.ndarray) -> None:
        """Add changes that happen at once."""
        self.level = self.level + sum(changes)
        self.rows.append(self.level.copy())

    def live(self) -> LiveBytes:
        """Return what is live at each moment."""
        return LiveBytes(np.arange(len(self.rows), dtype=float), np.stack(self.rows))


def whole_model(
    stage: StageBytes,
    microbatches: int,
    held: np.ndarray,
    update: float,
    *,
    buckets: float | None = None,
    averages: float = 0.0,
) -> LiveBytes:
    """Predict a step of a model that a rank holds as a whole, under Lightning's loop.

    The last step's gradients are there until the first backward pass, but in buckets, where they stay. There
    each is made apart first, and those of several micro-batches are added up before they go to the buckets.

    Args:
        stage: the model's passes.
        microbatches: of a step.
        held: what is held between steps, without gradients [parts].
        update: bytes that the optimizer's update makes for a moment.
        buckets: bytes of gradients' buckets, as those of DistributedDataParallel; `None` without.
        averages: bytes of exchange that an average of parameters makes after the update.
    """
    gradients = stage.passes[Kind.BACKWARD, False, True].after[GRADIENTS]
    step = Step(held + parts(gradients=gradients if buckets is None else buckets))
    for number in range(microbatches):
        # A single micro-batch's gradients go to the buckets one by one.
        first = number == 0 and (buckets is None or microbatches > 1)
        step.add(stage.passes[Kind.FORWARD, False, first])
        if first and buckets is None:
            step.change(parts(gradients=-gradients))
        step.add(stage.passes[Kind.BACKWARD, False, first])
    if buckets is not None and microbatches > 1:
        step.change(parts(gradients=-gradients))
    step.change(parts(other=update))
    if averages:
        step.change(parts(other=-update, exchange=averages))
    return step.live()


def stages_of_rank(
    schedule: str | None,
    order: Sequence[Action],
    stages: Mapping[int, StageBytes],
    held: np.ndarray,
    update: float,
    *,
    again: Container[int] = (),
    last: int = -1,
    averages: bool = False,
) -> LiveBytes:
    """Predict a step of a rank that holds stages of a pipeline, as torch's stages and schedules run it.

    Its gradients are freed before the first pass. Where a rank has several stages, and under `gpipe`, what it
    sends is kept until the step's end. Under `1f1b` the last output and the last gradients that were sent are
    kept until the next ones are there; so is the last output of the model. What a stage hands to another one
    of the same rank takes the place of a buffer.

    Args:
        schedule: its name; `None` where one micro-batch follows the other.
        order: what the rank does, one pass after the other.
        stages: those that it holds, by number.
        held: what is held between steps, without gradients [parts].
        update: bytes that the optimizer's update makes for a moment.
        again: the micro-batches whose forward passes are computed again.
        last: the number of the model's last stage, which sends nothing.
        averages: whether gradients are averaged over copies of the stages, for which they are copied.
    """
    to_end = schedule not in (None, "1f1b")
    begun = next((place for place, each in enumerate(order) if each.kind is not Kind.FORWARD), 0)
    forwards = sum(each.kind is Kind.FORWARD for each in order)
    step, added = Step(held.copy()), set[int]()
    latest, kept_output, kept_gradients = dict[int, int](), set[int](), set[int]()
    for stage, kind, microbatch in order:
        own, changes = stages[stage], []
        if kind is Kind.FORWARD:
            latest[stage] = microbatch
            if stage in kept_output:
                kept_output.remove(stage)
                changes.append(parts(activations=-own.kept))
            if stage + 1 in stages:
                changes.append(parts(exchange=-own.kept))
        if kind in (Kind.BACKWARD, Kind.INPUT_BACKWARD):
            if to_end or (schedule == "1f1b" and stage not in kept_gradients):
                kept_gradients.add(stage)
                changes.append(parts(exchange=own.kept_back))
            if stage - 1 in stages:
                changes.append(parts(exchange=-own.kept_back))
        if kind in (Kind.BACKWARD, Kind.WEIGHT_BACKWARD):
            if to_end and stage != last:
                changes.append(parts(activations=own.kept))
            elif schedule in ("gpipe", "1f1b") and microbatch == latest[stage]:
                kept_output.add(stage)
                changes.append(parts(activations=own.kept))
            if schedule == "1f1b" and begun > 1:
                # Until the last forward pass is done it knows of the last output that was sent before the
                # first backward pass.
                if microbatch == begun - 2:
                    changes.append(parts(activations=own.kept))
                if microbatch == forwards - begun:
                    changes.append(parts(activations=-own.kept))
        step.add(own.passes[kind, microbatch in again, stage not in added], *changes)
        if kind in (Kind.BACKWARD, Kind.WEIGHT_BACKWARD):
            added.add(stage)
    gradients = step.level[GRADIENTS] - held[GRADIENTS]
    after = held + parts(gradients=gradients)
    if averages:
        step.change(after + parts(exchange=gradients) - step.level)
    step.change(after + parts(other=update) - step.level)
    return step.live()

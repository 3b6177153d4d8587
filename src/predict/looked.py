"""Keep what looks at steps have found of a strategy's devices: what they hold, and what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from src.predict.law import Fullest, Law
from src.predict.step import Parts
from src.predict.traced.programs import Traces
from src.predict.traced.stages import Cut


@dataclass(frozen=True)
class Looked:
    """The steps of a strategy that were looked at.

    Attributes:
        devices: how many were looked at.
        law: by which so many, or others, hold what they hold.
        weights: bytes of the whole model's weights.
        traces: of what one of them does, or the stages among which they lie; a line where that doesn't go
            with samples.
        bucket_bytes: of the gradients that are summed at a time.
        copies: among how many a batch's samples are divided; `None` for all devices.
        at_start: how often the whole model's weights are there on a device before the first step, while it
            is looked at.
        batchnorm: whether the model has statistics of a micro-batch, of which one sample has none.
    """

    devices: int
    law: Law | Fullest
    weights: float
    traces: Traces | Cut | str
    bucket_bytes: float = 0.0
    copies: int | None = 1
    at_start: float = 1.0
    batchnorm: bool = False


@dataclass(frozen=True)
class Stages:
    """A pipeline that is asked for: so many devices, stages, and numbers of micro-batches to choose from."""

    devices: int
    pipeline: int
    batch: int
    microbatches: tuple[int, ...]


@dataclass(frozen=True)
class LookedPipeline:
    """A pipeline that was looked at.

    Attributes:
        microbatches: of a step.
        parts: the seconds of a step, by what is believed of machines.
        held: bytes by part on the device that holds most, when it does.
        at_start: bytes of weights on a device before the first step.
        recompute: what is computed again for backward passes, as `strategy.recompute` has it.
    """

    microbatches: int
    parts: Parts
    held: Mapping[str, float]
    at_start: float
    recompute: str = "none"

"""Name what the ranks of a pipeline do: passes of micro-batches through stages, which lie on ranks."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """A pass of one micro-batch through one stage.

    A backward pass is one for the stage's inputs, which the stage before waits for, and one for its weights,
    which nobody waits for (Qi et al. 2023, Zero Bubble Pipeline Parallelism).
    """

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_BACKWARD = "I"
    WEIGHT_BACKWARD = "W"


class Action(NamedTuple):
    """One pass of a micro-batch through a stage, both counted from 0."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


# What each rank does, one after the other.
Table = tuple[tuple[Action, ...], ...]

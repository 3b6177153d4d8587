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


class Placement(StrEnum):
    """How the stages lie on the ranks.

    Attributes:
        LOOP: stage i is on rank i mod p (Narayanan et al. 2021, Efficient Large-Scale Language Model Training
            on GPU Clusters Using Megatron-LM, section 2.2).
        V: the first p stages go down the ranks and the next ones up again, so that the first and the last
            stage are on rank 0 (Qi et al. 2023, section 6).
    """

    LOOP = "loop"
    V = "v"

    def rank(self, stage: int, ranks: int) -> int:
        """Return the rank that holds a stage, of so many ranks."""
        turn, place = divmod(stage, ranks)
        return ranks - 1 - place if self is Placement.V and turn % 2 else place

    def stages(self, rank: int, ranks: int, virtual: int) -> tuple[int, ...]:
        """Return the `virtual` stages that a rank holds, in the order of the model."""
        return tuple(stage for stage in range(ranks * virtual) if self.rank(stage, ranks) == rank)

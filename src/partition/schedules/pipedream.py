"""Say which weights PipeDream's micro-batches see, and how many versions of them a stage holds.

A stage begins a micro-batch while the ones before it are still under way, and updates its weights after each
step's last backward pass. Each micro-batch keeps, for its backward pass, the version of its forward pass:

    all    the newest version that the stage has when it begins (Narayanan et al. 2019, PipeDream: Generalized
           Pipeline Parallelism for DNN Training, section 3.3, weight stashing); with `vertical_sync`, the
           newest that the first stage has, on all stages
    two    that of one step ago, on all stages, of which so no more than two are held (Narayanan et al. 2021b,
           Memory-Efficient Pipeline-Parallel DNN Training, section 3.1, PipeDream-2BW)

Micro-batches, steps and versions are counted from 0, from where no micro-batch is under way.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightRule:
    """The rule of one stage.

    Attributes:
        stages: number of stages.
        stage: which one it is.
        microbatches: number of micro-batches in a step.
        stash: `all` or `two`.
        vertical_sync: whether all stages use the same version for a micro-batch.
    """

    stages: int
    stage: int
    microbatches: int
    stash: str = "all"
    vertical_sync: bool = False

    @property
    def depth(self) -> int:
        """Return how many micro-batches are under way at once in the stage and those after it."""
        return self.stages - self.stage

    def version(self, microbatch: int) -> int:
        """Return the version of the weights that a micro-batch sees."""
        if self.stash == "two":
            return max(0, microbatch // self.microbatches - 1)
        depth = self.stages if self.vertical_sync else self.depth
        return max(0, microbatch - depth + 1) // self.microbatches

    def staleness(self, microbatch: int) -> int:
        """Return how many updates come between the version that a micro-batch sees and its own update."""
        return microbatch // self.microbatches - self.version(microbatch)

    @property
    def versions(self) -> int:
        """Return how many versions of its weights the stage holds at their most.

        Versions never fall from one micro-batch to the next: from that of the oldest one under way to the
        newest there are as many as updates between them.
        """
        return 1 + max(map(self.staleness, range(self.stages + 2 * self.microbatches)))

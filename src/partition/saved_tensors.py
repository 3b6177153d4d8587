"""Work out what a stage's saved tensors take at their most, under each schedule of a pipeline.

Autograd saves tensors in a micro-batch's forward pass and frees them in its backward pass. So a stage holds
those of all micro-batches whose forward pass it has done, and whose backward pass it hasn't.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from src.partition.schedules.actions import Action, Kind
from src.partition.schedules.pipedream import WeightRule


@dataclass(frozen=True)
class SavedTensors:
    """Bytes of one micro-batch in one stage, weights left out.

    Attributes:
        inputs: of all tensors that the stage receives.
        saved_inputs: of those among them that autograd saves.
        others: of everything else that autograd saves.
    """

    inputs: float
    saved_inputs: float
    others: float


def in_flight(order: Sequence[Action]) -> dict[int, int]:
    """Return by stage the most micro-batches whose activations a rank with such an order holds at once."""
    now, most = Counter[int](), Counter[int]()
    for action in order:
        if action.kind is Kind.FORWARD:
            now[action.stage] += 1
            most[action.stage] = max(most[action.stage], now[action.stage])
        elif action.kind is not Kind.INPUT_BACKWARD:
            now[action.stage] -= 1
    return dict(most)


def most_bytes(
    order: Sequence[Action], saved: Mapping[int, SavedTensors], microbatches: int, recompute: str = "none"
) -> float:
    """Return the most bytes of saved tensors that a rank holds at once.

    A micro-batch's are held until its backward pass, the one for weights where both are apart: autograd keeps
    a graph as a whole. One that is computed again for its backward pass (`recompute`) has its inputs until
    then, and the others during it. The first stage's inputs are parts of one tensor, the batch's images, all
    of which is held as long as one of them is.

    Args:
        order: what the rank does, one pass after the other.
        saved: bytes of one micro-batch, by stage.
        microbatches: number of micro-batches in a step.
        recompute: `none`, `full` or `except_last`.
    """
    if microbatches == 1 and recompute == "except_last":
        # The only one is the last one, which isn't computed again.
        recompute = "none"
    now = most = 0.0
    for stage, kind, microbatch in order:
        here = saved[stage]
        inputs = here.saved_inputs if recompute == "none" else here.inputs
        again = recompute == "full" or (recompute == "except_last" and microbatch < microbatches - 1)
        kept = 0.0 if again else here.others
        if kind is Kind.FORWARD:
            # All of the batch's images are there for the first of its micro-batches.
            now += kept + (inputs if stage else inputs * microbatches * (microbatch == 0))
            most = max(most, now)
        elif kind is not Kind.INPUT_BACKWARD:
            most = max(most, now + (here.others if again else 0.0))
            now -= kept + (inputs if stage else 0.0)
    return most


def most_bytes_when_full(rule: WeightRule, saved: SavedTensors, recompute: str) -> float:
    """Return the most bytes of saved tensors in a stage of a pipeline that isn't emptied between steps.

    As `most_bytes` has them, but that micro-batches of several steps are under way at once.

    Args:
        rule: the stage's.
        saved: bytes of one micro-batch.
        recompute: `none` or `full`.
    """
    again = recompute == "full"
    kept, inputs = (0.0, saved.inputs) if again else (saved.others, saved.saved_inputs)
    most, count = 0.0, rule.microbatches
    for begun in range(1, rule.depth + 2 * count):
        done = max(0, begun - rule.depth)
        # The first stage's inputs are parts of one tensor for each step that has some under way.
        received = begun - done if rule.stage else ((begun - 1) // count - done // count + 1) * count
        now = kept * (begun - done) + inputs * received
        most = max(most, now + (saved.others if again else 0.0))
    return most

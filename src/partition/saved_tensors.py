"""Work out what a stage's saved tensors take at their most, under each schedule of a pipeline.

Autograd saves tensors in a micro-batch's forward pass and frees them in its backward pass. So a stage holds
those of all micro-batches whose forward pass it has done, and whose backward pass it hasn't.
"""

from __future__ import annotations

from dataclasses import dataclass


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


def in_flight(schedule: str | None, stage: int, stages: int, microbatches: int) -> int:
    """Return the most micro-batches whose activations stage `stage` (from 0) holds at once.

    GPipe (Huang 2019, section 2.3) does all forward passes first. Under 1F1B (Narayanan 2019, section 3.2) a
    stage does as many before its first backward pass as there are stages from it to the last one. Without a
    schedule each micro-batch's backward pass follows at once.
    """
    return {"gpipe": microbatches, "1f1b": min(microbatches, stages - stage), None: 1}[schedule]


def most_bytes(
    saved: SavedTensors,
    *,
    schedule: str | None,
    recompute: str,
    stage: int,
    stages: int,
    microbatches: int,
) -> float:
    """Return the most bytes of saved tensors that stage `stage` (from 0) holds at once.

    With k micro-batches in flight, i bytes of inputs a micro-batch and e bytes of others:

        none            k i + k e, of the inputs only those that autograd saves
        full            k i + e: all keep their inputs, and one's others are computed again for its backward
        except_last     k i + 2 e for k > 1: the last one's others are there before the first one's
                        backward pass, which torch's schedules do first; k i + e for k = 1

    The first stage's inputs are parts of one tensor, the batch's images, all of which is held as long as one
    of them is: there k i is that of all micro-batches.

    Args:
        saved: bytes of one micro-batch.
        schedule: `gpipe`, `1f1b`, or `None` where one micro-batch follows the other.
        recompute: `none`, `full` or `except_last`.
        stage: number of the stage.
        stages: number of stages.
        microbatches: number of micro-batches in a step.
    """
    held = in_flight(schedule, stage, stages, microbatches)
    inputs_held = microbatches if stage == 0 else held
    if recompute == "none":
        return inputs_held * saved.saved_inputs + held * saved.others
    if recompute == "full":
        return inputs_held * saved.inputs + saved.others
    if microbatches == 1:
        # The only one is the last one, which isn't computed again.
        return saved.saved_inputs + saved.others
    return inputs_held * saved.inputs + min(held, 2) * saved.others

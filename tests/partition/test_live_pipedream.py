"""The bytes of a stage under PipeDream are those that are added up by hand."""

from __future__ import annotations

import numpy as np

from src.measure.live_bytes import PARTS
from src.partition.live_memory import PassBytes, StageBytes, parts
from src.partition.live_pipedream import Asynchronous, live_bytes
from src.partition.schedules.actions import Kind
from src.partition.schedules.pipedream import WeightRule

# The forward pass saves 8 bytes besides its output of 2; a step's first backward pass makes 6 of gradients.
FORWARD = PassBytes(most=parts(activations=10), after=parts(activations=10))
FIRST = PassBytes(most=parts(gradients=6), after=parts(activations=-10, gradients=6))
LATER = PassBytes(most=parts(other=1), after=parts(activations=-10))
HELD = parts(weights=6, optimizer=6)


def stage() -> StageBytes:
    return StageBytes(
        passes={
            (Kind.FORWARD, False, True): FORWARD,
            (Kind.FORWARD, False, False): FORWARD,
            (Kind.BACKWARD, False, True): FIRST,
            (Kind.BACKWARD, False, False): LATER,
        },
        output=2,
        kept=2,
        received=2,
        received_back=2,
    )


def first_of_two(microbatches: int, stash: str, steps: int) -> dict[str, int]:
    options = Asynchronous(
        rule=WeightRule(stages=2, stage=0, microbatches=microbatches, stash=stash),
        weights=6,
        batch=4,
        ahead=1,
        back=0,
        most_sent=4,
        again=False,
        update=3,
    )
    return live_bytes(stage(), options, HELD, steps).most()


def by_part(**sizes: int) -> dict[str, int]:
    return dict(zip(PARTS, np.asarray(parts(**sizes)).astype(int).tolist(), strict=True))


def test_a_pipeline_that_fills_has_what_was_begun() -> None:
    assert first_of_two(1, "all", 1) == by_part(weights=6, activations=10, exchange=2, other=4)
    assert first_of_two(1, "all", 2) == by_part(weights=6, activations=20, exchange=4, other=8)


def test_a_full_pipeline_has_versions_of_the_weights_and_what_was_sent() -> None:
    # When the fifth step has its batch two micro-batches are under way, of two batches and two versions of
    # the weights; the outputs of two whose backward passes are done are still kept.
    assert first_of_two(1, "all", 5) == by_part(
        weights=12, gradients=6, optimizer=6, activations=24, exchange=4, other=12
    )


def test_where_gradients_are_added_up_a_batch_is_needed_until_its_last_backward_pass() -> None:
    # The first backward pass of the third step is of the second step's last but one micro-batch.
    found = first_of_two(4, "two", 3)
    assert (found["weights"], found["activations"], found["other"]) == (12, 24, 9)

"""A step's live bytes are added up pass by pass; numbers here are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from src.measure.live_bytes import PARTS
from src.partition.live_memory import PassBytes, StageBytes, parts, stages_of_rank, whole_model
from src.partition.schedules import tables
from src.partition.schedules.actions import Kind

# A forward pass makes 12 bytes for a moment and keeps 10; a backward pass needs 4 more at its start.
FORWARD = PassBytes(most=parts(activations=12), after=parts(activations=10))
FIRST = PassBytes(most=parts(other=4), after=parts(activations=-10, gradients=6))
LATER = PassBytes(most=parts(other=4), after=parts(activations=-10))
HELD = parts(weights=6, optimizer=6, other=1)


def stage(**sizes: float) -> StageBytes:
    """Return a stage with these passes, computed again or not, whose forward pass then keeps 3 bytes."""
    again = PassBytes(most=parts(activations=12), after=parts(activations=3))
    back = PassBytes(most=parts(other=11), after=parts(activations=-3))
    passes = {(Kind.FORWARD, False, first): FORWARD for first in (True, False)}
    passes |= {(Kind.FORWARD, True, first): again for first in (True, False)}
    passes |= {(Kind.BACKWARD, False, True): FIRST, (Kind.BACKWARD, False, False): LATER}
    added = PassBytes(back.most, back.after + parts(gradients=6))
    passes |= {(Kind.BACKWARD, True, True): added, (Kind.BACKWARD, True, False): back}
    return StageBytes(passes=passes, **sizes)


def most(
    schedule: str | None, rank: int, microbatches: int, again: range = range(0), **sizes: float
) -> dict[str, int]:
    order = tables.table(schedule, 2, 1, microbatches)[rank]
    found = stages_of_rank(schedule, order, {rank: stage(**sizes)}, HELD, 0.0, again=again, last=1)
    return found.most()


def test_a_whole_model_has_the_last_steps_gradients_until_it_goes_backward() -> None:
    found = whole_model(stage(), 1, HELD, 0.0)
    # 13 held, 6 of gradients, and the forward pass's 12; then without gradients 10 and 4.
    assert found.sizes.sum(axis=1).tolist() == [19, 31, 29, 23, 27, 19, 19]
    assert found.most()["gradients"] == 6 and found.most()["activations"] == 12


def test_gradients_in_buckets_stay() -> None:
    found = whole_model(stage(), 1, HELD, 0.0, buckets=6.0)
    assert found.sizes.sum(axis=1).tolist() == [19, 31, 29, 33, 19, 19]


def test_an_update_may_be_what_needs_most() -> None:
    assert whole_model(stage(), 1, HELD, 30.0).most() == dict(zip(PARTS, (6, 6, 6, 0, 0, 31), strict=True))


@pytest.mark.parametrize(("microbatches", "activations"), [(1, 10), (4, 40)])
def test_gpipe_holds_all_micro_batches(microbatches: int, activations: int) -> None:
    found = most("gpipe", 0, microbatches)
    assert found["activations"] == activations and found["other"] == 1 + 4


def test_1f1b_holds_as_many_as_there_are_stages_after_it() -> None:
    # Two are held when the second one goes backward, by when there are gradients; then one.
    assert most("1f1b", 0, 4) == dict(zip(PARTS, (6, 6, 6, 20, 0, 5), strict=True))
    assert most("1f1b", 1, 4) == dict(zip(PARTS, (6, 6, 6, 10, 0, 5), strict=True))


def test_micro_batches_that_are_computed_again_keep_less() -> None:
    # Most is live when the second one goes backward, by when there are gradients: 3 bytes of each of three.
    assert most("gpipe", 0, 4, range(4)) == dict(zip(PARTS, (6, 6, 6, 9, 0, 12), strict=True))
    # The last one keeps all of its 10.
    assert most("gpipe", 0, 4, range(3)) == dict(zip(PARTS, (6, 6, 6, 16, 0, 12), strict=True))


def test_what_is_sent_back_stays_to_the_end_under_gpipe() -> None:
    found = stages_of_rank(
        "gpipe",
        tables.table("gpipe", 2, 1, 3)[1],
        {1: stage(sent_back=2, output=5, kept_back=2, kept=5)},
        HELD,
        0.0,
        last=1,
    )
    ends = found.sizes[-2]
    # Three gradients, and the last output.
    assert ends[PARTS.index("exchange")] == 3 * 2 and ends[PARTS.index("activations")] == 5
    np.testing.assert_array_equal(found.sizes[-1], HELD + parts(gradients=6))


def test_what_goes_to_a_stage_of_the_same_rank_takes_the_place_of_a_buffer() -> None:
    order = tables.table("dualpipe_v", 2, 2, 4)[1]
    own = {1: stage(output=5, sent_back=5), 2: stage(output=5, sent_back=5)}
    passes = {
        (kind, again, first): LATER if kind is not Kind.FORWARD else FORWARD
        for kind in Kind
        for again in (False, True)
        for first in (True, False)
    }
    split = {
        number: StageBytes(
            passes=passes,
            output=each.output,
            sent_back=each.sent_back,
            kept=each.output,
            kept_back=each.sent_back,
        )
        for number, each in own.items()
    }
    found = stages_of_rank("dualpipe_v", order, split, HELD + parts(exchange=60), 0.0, last=3)
    # Four outputs are handed on within the rank, as activations; four gradients are, and four are sent.
    assert found.sizes[-2][PARTS.index("exchange")] == 60 - 4 * 5 + 4 * 5

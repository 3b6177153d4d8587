"""What stages that nobody runs hold is found once for all pipelines that have them."""

from __future__ import annotations

import pytest

from src.predict import asked, dry_runs, stage_choices
from src.predict.asked import HYBRID
from src.predict.looked import LookedPipeline, Stages
from src.runtime.torch import predicted_memory

WORDS = ("hardware=a100_80gb", "model=cnn", "dataset=mnist", "strategy.pipeline=2")
ROOM = 2.0**36


@pytest.mark.parametrize(
    ("strategy", "room"),
    [
        (("strategy.schedule=1f1b",), ROOM),
        # Where nothing fits, passes that are computed again are looked at, too.
        (("strategy.schedule=1f1b",), 1.0),
        (("strategy.schedule=gpipe", "strategy.recompute=except_last"), ROOM),
    ],
)
def test_copies_of_stages_hold_what_they_hold_alone(
    strategy: tuple[str, ...], room: float, mnist: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = asked.read([*WORDS, *strategy])
    base = dry_runs.config_of(question.words, HYBRID, 2, 2, 2)
    traced: list[int] = []
    own = predicted_memory.of_passes

    def counted(context, *further, **named):  # type: ignore[no-untyped-def]
        traced.append(context.config.microbatch)
        return own(context, *further, **named)

    monkeypatch.setattr(predicted_memory, "of_passes", counted)

    def looked(*wanted: Stages) -> list[LookedPipeline]:
        traced.clear()
        every = [choice for _, choice in stage_choices.looked_at(question, base, wanted, room)]
        return [each for each in every if isinstance(each, LookedPipeline)]

    # Of the same stages: two copies with half as many micro-batches, and twice as many samples in each.
    wanted = Stages(2, 2, 64, (8,)), Stages(4, 2, 64, (4,)), Stages(2, 2, 64, (4,))
    (first,) = looked(wanted[0])
    assert set(traced) == {8}
    once = len(traced)
    alone = [first, *(each for one in wanted[1:] for each in looked(one))]
    assert len({tuple(each.held.items()) for each in alone}) == 3
    assert looked(*wanted) == alone
    assert sorted(traced) == [8] * once + [16] * once

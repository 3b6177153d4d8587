"""Steps of models that are cut into stages, by hand: operations of 1 s forward and 2 s backward a sample."""

from __future__ import annotations

from dataclasses import replace

import pytest

from src.config import ConfigError
from src.predict.own import steps
from src.predict.own.constants import Constants
from tests.predict.own import made
from tests.support import config

# Nothing but what the operations take.
PLAIN = Constants(beside=1.0, pass_seconds=0.0, between_seconds=0.0, sending=1.0, wake_seconds=0.0)
MODEL = ("model=mlp", "dataset=synthetic", "workers=2")


def seconds(*words: str, constants: Constants = PLAIN) -> float:
    run = config(*MODEL, *words)
    return steps.of(run, made.profile(made.operations_point(run))).parts(constants).seconds


# The optimizer takes 4 s of the whole model, and each stage has half of it.
UPDATE = 2.0


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_pipeline_takes_a_micro_batch_more_than_it_has(schedule: str, count: int) -> None:
    words = ("strategy=pipeline", f"strategy.schedule={schedule}", f"batch={count}", f"microbatches={count}")
    # A stage has two operations: 6 s a micro-batch of one sample.
    assert seconds(*words) == pytest.approx((count + 1) * 6 + UPDATE)
    assert seconds(*words, constants=replace(PLAIN, pass_seconds=1.0, between_seconds=3.0)) == pytest.approx(
        (count + 1) * 8 + UPDATE + 3
    )


def test_a_split_model_computes_one_stage_after_the_other() -> None:
    assert seconds("strategy=model_split", "batch=2", "microbatches=1") == pytest.approx(2 * 12 + UPDATE)


def test_asynchronous_stages_are_always_busy() -> None:
    assert seconds("strategy=pipedream", "batch=4", "microbatches=4") == pytest.approx(4 * 6 + UPDATE)


def test_what_is_computed_again_takes_its_forward_pass() -> None:
    words = ("strategy=pipeline", "strategy.schedule=gpipe", "batch=2", "microbatches=2")
    assert seconds(*words, "strategy.recompute=full") == pytest.approx(3 * 8 + UPDATE)


def test_parts_add_up_and_idle_stages_are_the_bubble() -> None:
    run = config(*MODEL, "strategy=pipeline", "strategy.schedule=gpipe", "batch=2", "microbatches=2")
    parts = steps.of(run, made.profile(made.operations_point(run))).parts(PLAIN)
    assert (parts.compute, parts.bubble, parts.other) == pytest.approx((12.0, 6.0, UPDATE))


def test_other_micro_batches_are_on_the_line_through_two_sizes() -> None:
    words = (*MODEL, "strategy=pipeline", "strategy.schedule=gpipe", "microbatches=2")
    known = [made.operations_point(config(*words, f"batch={batch}")) for batch in (2, 8)]
    asked = config(*words, "batch=4")
    assert steps.of(asked, made.profile(*known)).parts(PLAIN).seconds == pytest.approx(3 * 12 + UPDATE)
    with pytest.raises(
        ConfigError, match="micro-batches of 1 samples were profiled, not of 2; profile these"
    ):
        steps.of(asked, made.profile(known[0])).parts(PLAIN)


def test_a_stage_is_quicker_while_the_other_one_waits() -> None:
    run = config(*MODEL, "strategy=model_split", "batch=2", "microbatches=1")
    point = made.operations_point(run)
    # Alone the whole model's passes take half as long; a split model's stages never compute at once.
    alone = {**point.ranks[0]["step"], "forward": 4.0, "backward": 8.0}
    eased = replace(point, ranks=[{**point.ranks[0], "alone": alone}])
    found = steps.of(run, made.profile(eased)).parts(PLAIN)
    assert found.compute + found.bubble == pytest.approx(12.0)

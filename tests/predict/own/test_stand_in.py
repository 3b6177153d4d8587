"""Strategies that are predicted from another one's step: which that is, and what they exchange besides."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from src.config import Config, ConfigError
from src.config.choices import strategies
from src.machine import devices
from src.predict.own import added, cost_profile, stand_in, steps
from src.predict.own.constants import Constants
from src.predict.own.cost_profile import Point
from src.predict.own.rehearsed_step import RehearsedStep
from src.predict.program import Event, Program
from tests.predict.own import made
from tests.support import config

# What is measured, and nothing else.
PLAIN = Constants(
    beside=1.0,
    straggling=0.0,
    shared_memory=1.0,
    exchanging=1.0,
    exchanging_apart=1.0,
    wake_seconds=0.0,
    serving=0.5,
)
WORDS = ("model=mlp", "dataset=synthetic", "workers=2", "batch=8")
MIB = 2**20


def point(run: Config) -> Point:
    """A rehearsal in the place of a run: half a second for each sample, and a second of update; 1 MiB."""
    found = made.steps_point(stand_in.of(run), 0.5)
    ranks = [{**rank, "trained_bytes": MIB} for rank in found.ranks]
    return replace(found, ranks=ranks, beside=stand_in.beside(run))


def parts(*words: str, constants: Constants = PLAIN) -> tuple[float, float]:
    """Seconds of computing and exchanging, where a MiB takes a second between two."""
    run = config(*WORDS, *words)
    exchanges = {**made.exchanges(1.0), "by": run.strategy["name"]}
    profile = made.profile(point(run)).with_exchanges(exchanges)
    for name in ("mpi", "tf_multiworker"):
        profile = profile.with_exchanges({**made.exchanges(1.0), "by": name})
    found = steps.of(run, profile).parts(constants)
    return found.compute, found.exchange


def test_every_strategy_that_is_predicted_as_another_one_names_one_that_is_rehearsed() -> None:
    for name, file in strategies().items():
        if predicted := file.get("predicted"):
            run = config(*WORDS, f"strategy={name}")
            rehearsed = stand_in.of(run)
            assert rehearsed.strategy["name"] == predicted["as"]
            assert rehearsed.supports.rehearsal and stand_in.of(rehearsed) == rehearsed
            assert cost_profile.kind_of(run) == cost_profile.STEPS
            assert rehearsed.framework == run.framework


def test_a_device_alone_has_its_worker_s_part_of_the_batch_and_the_options_that_both_have() -> None:
    run = config(*WORDS, "strategy=tf_multiworker", "strategy.steps_per_execution=4", "microbatches=2")
    rehearsed = stand_in.of(run)
    assert (rehearsed.workers, rehearsed.batch, rehearsed.microbatch) == (1, 4, run.microbatch)
    assert rehearsed.strategy["steps_per_execution"] == 4
    mpi = stand_in.of(config(*WORDS, "strategy=mpi", "strategy.bucket_mb=3"))
    assert (mpi.workers, mpi.strategy["all_reduce"], mpi.strategy["bucket_mb"]) == (2, "backend", 3)
    # Of its own step one rank alone does what is no exchange.
    itself = stand_in.of(config(*WORDS, "strategy=tf_mpi", "workers=4"))
    assert (itself.strategy["name"], itself.workers, itself.batch) == ("tf_mpi", 1, 2)
    # A stage's device computes all samples, one stage after another.
    assert stand_in.of(config(*WORDS, "strategy=tf_model_split")).batch == 8
    assert stand_in.beside(config(*WORDS, "strategy=tf_model_split")) == 1


# Four samples of half a second, and a second of update; a MiB takes a second.
@pytest.mark.parametrize(
    ("words", "compute", "exchange"),
    [
        (("strategy=hogwild",), 3.0, 0.0),
        (("strategy=local_sgd", "strategy.sync_every=8"), 3.0, 1 / 8),
        # The sum of the losses has 12 bytes.
        (("strategy=tf_multiworker",), 3.0, 1.0 + 12 / MIB),
        (("strategy=tf_mpi",), 3.0, 1.0),
        (("strategy=tf_mpi", "strategy.sync=epoch_average"), 3.0, 0.0),
        # Two stages compute the whole batch, one after the other.
        (("strategy=tf_model_split",), 5.0, 0.0),
        # There and back; the other worker makes half of it longer.
        (("strategy=parameter_server",), 3.0, 3.0),
        # A worker fetches from two servers as much; of each another worker has half as much.
        (("strategy=parameter_server", "strategy.servers=2"), 2.5, 2.5),
        (("strategy=parameter_server", "strategy.compression=bf16"), 3.0, 2.25),
        (("strategy=parameter_server", "strategy.mode=downpour"), 3.0, 3.0 / 5),
        (
            (
                "strategy=parameter_server",
                "strategy.mode=downpour",
                "strategy.fetch_every=2",
                "strategy.push_every=4",
            ),
            3.0,
            1.5 / 2 + 1.5 / 4,
        ),
    ],
)
def test_what_is_exchanged_comes_on_top(words: tuple[str, ...], compute: float, exchange: float) -> None:
    assert parts(*words) == pytest.approx((compute, exchange))


@pytest.mark.parametrize(("strategy", "seconds"), [("tf_mirrored", 4.0), ("ddp", 1.0)])
def test_threads_of_another_library_take_a_while_to_awake(strategy: str, seconds: float) -> None:
    # A MiB in shared memory takes a second, during which ranks of torch don't sleep.
    woken = parts(f"strategy={strategy}", constants=replace(PLAIN, wake_seconds=4.0, slowed=0.0))
    assert woken[1] == pytest.approx(seconds)


def test_an_mpi_moves_on_inside_its_calls_alone() -> None:
    run = config(*WORDS, "strategy=mpi")
    events = [
        {"kind": "all_reduce", "bytes": MIB, "ranks": 2, "call": 1, "seconds": 1.0},
        {"kind": "update", "bytes": 0, "ranks": 0, "call": 0, "seconds": 5.0},
    ]  # fmt: skip
    rehearsed = replace(point(run), ranks=[{"events": events, "last_seconds": 1.0, "computed": [7.0]}])
    profile = made.profile(rehearsed).with_exchanges({**made.exchanges(1.0), "by": "mpi"})
    found = steps.of(run, profile).parts(PLAIN)
    assert (found.compute, found.exchange) == pytest.approx((7.0, 1.0))
    # By a backend that goes on meanwhile the same exchange is hidden.
    ddp = config(*WORDS, "strategy=ddp", "strategy.all_reduce=backend")
    hidden = steps.of(ddp, made.profile(replace(rehearsed, code=cost_profile.code_of(ddp)))).parts
    assert hidden(replace(PLAIN, slowed=0.0)).seconds == pytest.approx(7.0)


def test_workers_wait_for_the_slowest_device_or_go_on_by_themselves() -> None:
    speeds = "hardware.speeds=[1,0.5]"
    # 3 and 6 seconds of computing, and 3 of exchanging each.
    assert sum(parts("strategy=parameter_server", speeds)) == pytest.approx(9.0)
    assert sum(parts("strategy=parameter_server", "strategy.mode=ssp", speeds)) == pytest.approx(9.0)
    # Two steps in as long as it takes both: one in 6, one in 9.
    alone = sum(parts("strategy=parameter_server", "strategy.mode=async", speeds))
    assert alone == pytest.approx(2 / (1 / 6 + 1 / 9))


def test_shares_of_a_batch_take_as_long_as_the_longest() -> None:
    run = config(*WORDS, "strategy=ddp", "hardware.speeds=[1,0.5]", "batch_shares=[6,2]")
    whole = stand_in.of(run)
    profile = made.profile(*(made.steps_point(replace(whole, batch=2 * each), 0.5) for each in (2, 4)))
    step = steps.of(run, profile)
    # 6 x 0.5 + 1 on one, (2 x 0.5 + 1) x 2 on the other; and 1 of exchange.
    assert step.parts(PLAIN).seconds == pytest.approx(5.0)
    equal = steps.of(replace(run, batch_shares="equal"), profile).parts(PLAIN).seconds
    assert equal == pytest.approx(7.0)
    # Automatic shares end where both take as long: 43 samples 22.5 s on one, 21 samples 23 s on the other.
    many = replace(whole, batch=64)
    profile = made.profile(*(made.steps_point(replace(many, batch=2 * each), 0.5) for each in (16, 64)))
    auto = steps.of(replace(run, batch=64, batch_shares="auto"), profile)
    assert isinstance(auto, RehearsedStep)
    assert auto.shares == [43.0, 21.0]
    assert auto.parts(PLAIN).seconds == pytest.approx(24.0)


def test_what_waits_for_an_answer_waits_for_its_way_too() -> None:
    run = config(*WORDS, "strategy=parameter_server")
    rows = [{"operation": "send_receive", "sizes": [{"bytes": n, "seconds": 1.0} for n in (0, 2**26)]}]
    slow = {**made.exchanges(1.0), "by": "parameter_server", "rows": rows}
    found = steps.of(run, made.profile(point(run)).with_exchanges(slow)).parts(replace(PLAIN, serving=0.0))
    # The work item, the parameters and the gradient: there and back.
    assert found.exchange == pytest.approx(6.0)


def test_a_device_that_was_profiled_alone_tells_nothing_of_two() -> None:
    run = config(*WORDS, "strategy=local_sgd")
    alone = replace(point(run), beside=1)
    if len(devices.find("cpu", 1, None)) < 2:
        pytest.skip("this machine has one device")
    with pytest.raises(
        ConfigError, match=r"was profiled on 1 device\(s\) at once, not on 2; profile strategy="
    ):
        steps.of(run, made.profile(alone))
    # Where there are both, those of two are taken.
    assert [each.beside for each in made.profile(alone, point(run)).of(run)] == [2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("strategy=mpi", "strategy.compression=topk"), "strategy.compression=topk: steps with it can't"),
        (("strategy=local_sgd", "strategy.outer=slowmo"), "strategy.outer=slowmo: steps with it can't be"),
        (("strategy=tf_multiworker", "strategy.deterministic=true"), "strategy.deterministic=true: steps"),
        (("strategy=mpi", "batchnorm=sync"), "batchnorm=sync: steps of strategy=mpi with it can't be"),
        (
            ("strategy=tf_mirrored", "hardware.speeds=[1,0.5]"),
            "strategy tf_mirrored has all its devices in one",
        ),
    ],
)
def test_what_no_other_strategy_does_is_a_line(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        cost_profile.kind_of(config(*WORDS, *words))


def test_a_profile_without_the_bytes_of_the_model_is_a_line() -> None:
    run = config(*WORDS, "strategy=local_sgd")
    old = made.profile(replace(made.steps_point(stand_in.of(run), 0.5), beside=2))
    with pytest.raises(ConfigError, match="profile doesn't say how many bytes workers of strategy=local_sgd"):
        steps.of(run, old).parts(PLAIN)


def test_a_strategy_of_a_user_that_is_predicted_as_nothing_is_a_line() -> None:
    run = config(*WORDS, "strategy=local_sgd")
    strange = replace(run, strategy={**run.strategy, "predicted": {"as": "sinlge"}})
    with pytest.raises(ConfigError, match="strategy=local_sgd: is predicted as sinlge, which is no strategy"):
        stand_in.of(strange)
    for predicted, says in (
        ({"exchanges": "all_reduce"}, "its `predicted` has no `as`"),
        ({"as": "single", "exchange": "all_reduce"}, "its `predicted` has exchange; keys are as, options"),
        ({"as": "single", "every": "stale"}, "its `predicted` names stale, which is no option of it"),
    ):
        with pytest.raises(ConfigError, match=says):
            stand_in.of(replace(run, strategy={**run.strategy, "predicted": predicted}))
    strange = replace(run, strategy={**run.strategy, "predicted": {"as": "single", "exchanges": "all"}})
    with pytest.raises(ConfigError, match=r"predicted\.exchanges=all: must be all_reduce or servers"):
        added.exchanges(strange)


def test_an_exchange_that_is_not_seen_before_an_update_comes_at_the_end() -> None:
    run = config(*WORDS, "strategy=tf_custom")
    found = added.added(Program((), 4.0), run, MIB)
    assert [event.kind for event in found.events] == ["all_reduce", "wait"]
    assert found.simulate(lambda _: 2.0).seconds == 6.0
    seen = added.added(Program((Event("update", 0, 0, 0, 3.0),), 1.0), run, MIB)
    assert [event.kind for event in seen.events] == ["all_reduce", "wait", "update"]
    assert seen.simulate(lambda _: 2.0).seconds == 6.0

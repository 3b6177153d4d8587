"""Constants of a made-up machine are found by its runs; intervals are wider where nothing was seen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from src.predict.own import calibration, steps
from src.predict.own.calibration import Fit, Run, Scores
from src.predict.own.constants import Constants
from src.predict.own.steps import OwnStep
from tests.predict.own import made
from tests.support import config

TRUTH = Constants(shared_memory=3.0, exchanging=2.0, pass_seconds=0.02)


@cache
def step(*words: str, seconds: float = 0.02, size: int = 2**20) -> OwnStep:
    run = config("dataset=synthetic", "workers=2", *words)
    point = made.operations_point(run) if run.cuts else made.steps_point(run, seconds, size)
    return steps.of(run, made.profile(point, seconds_per_mib=0.1))


def runs(noise: float = 0.0) -> list[Run]:
    """Runs of three strategies and two models of other sizes, by the true constants and some noise."""
    generator = np.random.default_rng(0)
    found = []
    for model, size in (("mlp", 2**20), ("cnn", 4 * 2**20)):
        dataset = "dataset=mnist" if model == "cnn" else "dataset=synthetic"
        for batch in (8, 16, 32):
            for words in (
                ("strategy=ddp",),
                ("strategy=ddp", "strategy.all_reduce=backend"),
                ("strategy=fsdp",),
                ("strategy=pipeline", "strategy.schedule=gpipe", "microbatches=4"),
            ):
                one = step(f"model={model}", dataset, f"batch={batch}", *words, size=size)
                exact = one.parts(TRUTH).seconds
                found.append(Run(one, exact * float(np.exp(noise * generator.standard_normal()))))
    return found


def test_constants_are_found_again() -> None:
    found = calibration.fit(runs()).constants
    assert found.shared_memory == pytest.approx(TRUTH.shared_memory, rel=0.15)
    assert found.exchanging == pytest.approx(TRUTH.exchanging, rel=0.15)
    # Of what no run tells anything stays what was believed.
    assert calibration.fit([]) == Fit()


def test_runs_that_were_seen_are_predicted_better_than_by_the_profile_alone() -> None:
    known = runs(0.02)
    part, rest = known[::5], [run for place, run in enumerate(known) if place % 5]
    fit, plain = calibration.fit(rest), Fit()

    def error(found: Fit) -> float:
        return float(np.mean([abs(found.parts(run.step).seconds / run.seconds - 1) for run in part]))

    assert error(fit) < 0.06 < error(plain)


def test_intervals_are_wider_where_nothing_was_measured() -> None:
    known = runs(0.02)
    fit = calibration.fit(known)
    seen = calibration.scores(known, fit, seed=0)
    width, note = seen.width(known[0].step, 0.8)
    assert note == "" and 0.0 < width < 0.2
    other = step("model=mlp", "strategy=tensor_parallel", "batch=8")
    wider, note = seen.width(other, 0.8)
    assert wider >= width and note == "no run was measured of strategy tensor_parallel"
    assert Scores().width(other, 0.8)[1] == "no run was measured"
    assert seen.width(known[0].step, 0.9)[0] >= width


def test_a_faster_device_computes_in_less_time_and_exchanges_in_as_much() -> None:
    one = step("model=mlp", "strategy=fsdp", "batch=8")
    plain, fast = Fit(), Fit(compute=2.0)
    assert fast.parts(one).compute == pytest.approx(plain.parts(one).compute / 2)
    assert one.times is not None
    twice = replace(one, times=replace(one.times, network=2.0))
    assert plain.parts(twice).seconds < plain.parts(one).seconds

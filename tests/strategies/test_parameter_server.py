"""Torch's parameter servers: what each mode computes, in float64; workers and servers meet over TCP."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.strategies.parity import (
    ADAMW,
    BOUND,
    CNN,
    LIMIT_SECONDS,
    MODULE,
    NORMED,
    SAVED,
    STEPS,
    TERMS,
    UNCLIPPED,
    Case,
    Outcome,
    differences,
    gaps,
    read,
    rows,
    write,
)
from tests.support import ranks

PLAIN = ("optimizer.momentum=0",)
ADAGRAD = ("optimizer.name=adagrad", "optimizer.lr=0.01")


def served(mode: str, workers: int, *words: str) -> tuple[str, ...]:
    return ("strategy=parameter_server", f"strategy.mode={mode}", f"workers={workers}", *words)


# Portions that don't divide the batch.
LBFGS = ("strategy=sandblaster_lbfgs", "strategy.portion=7", *CNN)
CASES = (
    Case("single-cnn", CNN),
    Case("single-cnn-plain", (*CNN, *PLAIN)),
    Case("single-cnn-adagrad", (*CNN, *ADAGRAD)),
    Case("single-cnn-adam", (*CNN, "optimizer.name=adam", "optimizer.lr=0.001")),
    Case("rank-0-buffers", (*NORMED, "microbatches=4"), "buffers of the first half"),
    Case("sync-cnn", served("sync", 2, *CNN)),
    Case("sync-cnn-two-servers", served("sync", 2, *CNN, "strategy.servers=2", "microbatches=2")),
    Case("sync-cnn-shares", served("sync", 2, *CNN, "batch_shares=[20,12]")),
    Case("sync-cnn-adam", served("sync", 2, *CNN, "optimizer.name=adam", "optimizer.lr=0.001")),
    Case("sync-normed", served("sync", 2, *NORMED, "microbatches=2")),
    Case("ssp-0", served("ssp", 2, *CNN, *PLAIN, "strategy.staleness=0")),
    # Whoever is free first doesn't take the other one's share.
    Case("ssp-0-late", served("ssp", 2, *CNN, *PLAIN, "strategy.staleness=0"), "late answers"),
    Case("async-alone", served("async", 1, *CNN, "strategy.servers=2")),
    Case("ssp-alone", served("ssp", 1, *CNN)),
    Case("shat-alone", served("shat", 1, *CNN)),
    Case(
        "downpour-alone",
        served("downpour", 1, *CNN, *ADAGRAD, "strategy.fetch_every=1", "strategy.push_every=1"),
    ),
    # Clipped by the norm of both servers' parts; decayed and clipped by the worker where it is alone.
    Case("single-terms", (*CNN, *TERMS)),
    Case("single-terms-adagrad", (*CNN, *TERMS, *ADAGRAD)),
    Case("single-adamw", (*CNN, *ADAMW)),
    Case("single-plain-unclipped", (*CNN, *UNCLIPPED, *PLAIN)),
    Case("sync-terms", served("sync", 2, *CNN, *TERMS, "strategy.servers=2")),
    Case("sync-adamw", served("sync", 2, *CNN, *ADAMW, "strategy.servers=2", "batch_shares=[20,12]")),
    Case("sync-own-norm", served("sync", 2, *CNN, *TERMS, "strategy.servers=2"), "own norm"),
    Case("ssp-0-terms", served("ssp", 2, *CNN, *UNCLIPPED, *PLAIN, "strategy.staleness=0")),
    Case("async-alone-terms", served("async", 1, *CNN, *TERMS, "strategy.servers=2")),
    Case("async-alone-adamw", served("async", 1, *CNN, *ADAMW)),
    Case("shat-alone-terms", served("shat", 1, *CNN, *TERMS)),
    Case("hogwild-alone-terms", ("strategy=hogwild", "workers=1", *CNN, *TERMS, SAVED)),
    Case(
        "async-alone-resumed",
        served("async", 1, *CNN, *TERMS, "strategy.servers=2"),
        resumes="hogwild-alone-terms",
    ),
    Case(
        "downpour-alone-terms",
        served("downpour", 1, *CNN, *TERMS, *ADAGRAD, "strategy.fetch_every=1", "strategy.push_every=1"),
    ),
    Case("lbfgs-alone", (*LBFGS, "workers=1")),
    Case("lbfgs", (*LBFGS, "workers=2")),
    Case("hogwild-alone", ("strategy=hogwild", "workers=1", *CNN)),
    Case("hogwild", ("strategy=hogwild", "workers=2", *CNN)),
    Case("downpour", served("downpour", 2, *CNN, *ADAGRAD)),
    Case("async", served("async", 2, *CNN)),
)
# Steps of two workers, of which each has as many as it comes to; what one device computes instead.
ASYNCHRONOUS = {"async": "single-cnn", "hogwild": "single-cnn", "downpour": "single-cnn-adagrad"}


def train_cases(folder: Path) -> None:
    """By one process."""
    write(folder, CASES)
    with ranks(MODULE, [folder], 1, folder) as started:
        started.wait(LIMIT_SECONDS)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return {case.name: read(cases / case.name) for case in CASES if case.name not in ASYNCHRONOUS}


def without_gradients(outcome: Outcome) -> Outcome:
    """What a server has at the end is no gradient."""
    tensors = {name: value for name, value in outcome.tensors.items() if not name.startswith("gradients/")}
    return dataclasses.replace(outcome, tensors=tensors)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("sync-cnn", "single-cnn"),
        ("sync-cnn-two-servers", "single-cnn"),
        ("sync-cnn-shares", "single-cnn"),
        ("sync-cnn-adam", "single-cnn-adam"),
        ("sync-normed", "rank-0-buffers"),
        ("ssp-0", "single-cnn-plain"),
        ("ssp-0-late", "single-cnn-plain"),
        ("async-alone", "single-cnn"),
        ("ssp-alone", "single-cnn"),
        ("shat-alone", "single-cnn"),
        ("hogwild-alone", "single-cnn"),
        # The order in which portions arrive is another one.
        ("lbfgs", "lbfgs-alone"),
        ("downpour-alone", "single-cnn-adagrad"),
        ("sync-terms", "single-terms"),
        ("sync-adamw", "single-adamw"),
        # Without a limit the two parts' pushes are one update of plain SGD, decay included.
        ("ssp-0-terms", "single-plain-unclipped"),
        ("async-alone-terms", "single-terms"),
        ("async-alone-adamw", "single-adamw"),
        ("shat-alone-terms", "single-terms"),
        ("hogwild-alone-terms", "single-terms"),
        ("downpour-alone-terms", "single-terms-adagrad"),
    ],
)
def test_losses_parameters_and_buffers_are_those_of(
    trained: dict[str, list[Outcome]], name: str, reference: str
) -> None:
    expected = without_gradients(trained[reference][0])
    assert len(expected.losses) == STEPS
    for outcome in trained[name]:
        assert not differences(outcome, expected), gaps(outcome, expected)
        assert outcome.evaluation == pytest.approx(expected.evaluation, rel=1e-5)


def test_the_parity_check_fails_for_a_server_s_own_norm(trained: dict[str, list[Outcome]]) -> None:
    expected = without_gradients(trained["single-terms"][0])
    for outcome in trained["sync-own-norm"]:
        assert {"losses", "parameters"} <= set(differences(outcome, expected))


def test_a_resumed_training_goes_on_at_its_rate(trained: dict[str, list[Outcome]]) -> None:
    whole = without_gradients(trained["single-terms"][0])
    (resumed,) = trained["async-alone-resumed"]
    expected = dataclasses.replace(whole, losses=whole.losses[5:])
    assert not differences(resumed, expected), gaps(resumed, expected)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_stale_gradients_compute_something_else(
    cases: Path, trained: dict[str, list[Outcome]], name: str
) -> None:
    steps = [row for rank in range(2) for row in rows(cases / name / str(rank) / "steps.csv")]
    assert len(steps) == 2 * STEPS
    assert max(float(row["staleness"]) for row in steps) > 0
    reference = trained[ASYNCHRONOUS[name]][0]
    saved = np.load(cases / name / "0.npz")
    own = np.concatenate([saved[key].ravel() for key in sorted(saved) if key.startswith("parameters/")])
    expected = reference.vector("parameters")
    assert BOUND < np.linalg.norm(own - expected) / np.linalg.norm(expected) < 1

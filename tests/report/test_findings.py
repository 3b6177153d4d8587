"""Each rule on data made for it: the claim holds, its opposite holds, nothing can be said."""

from __future__ import annotations

from typing import Any

import pytest

from src.report.findings import RULES, check
from src.report.runs import Row


def row(**keys: Any) -> Row:
    return {"status": "ok", **keys}


def curve(values: dict[int, float], x: str = "batch", **keys: Any) -> list[Row]:
    return [row(**{x: at, "loss": value, **keys}) for at, value in values.items()]


RISING = curve({32: 0.1, 64: 0.2, 128: 0.3, 256: 0.5})
FALLING = curve({32: 0.5, 64: 0.3, 128: 0.2, 256: 0.1})
LEVEL = curve({32: 0.300, 64: 0.302, 128: 0.301, 256: 0.303})
TREND = {"rule": "trend", "metric": "loss", "over": "batch"}


@pytest.mark.parametrize(
    ("expect", "rows", "word"),
    [
        ("rises", RISING, "confirmed"),
        ("rises", FALLING, "contradicted"),
        ("rises", LEVEL, "undecided"),
        ("falls", FALLING, "confirmed"),
        ("falls", RISING, "contradicted"),
        ("falls", LEVEL, "undecided"),
        ("flat", LEVEL, "confirmed"),
        ("flat", RISING, "contradicted"),
        # Higher at the end, but it went down on the way as often as up: no trend.
        ("rises", curve({32: 0.3, 64: 0.1, 128: 0.2, 256: 0.35, 512: 0.32}), "undecided"),
    ],
)
def test_trend(expect: str, rows: list[Row], word: str) -> None:
    verdict = check(TREND | {"expect": expect}, rows)
    assert verdict.word == word
    assert "batch 32" in verdict.numbers


def test_trend_needs_points() -> None:
    verdict = check(TREND | {"expect": "rises", "points": 5}, RISING)
    assert (verdict.word, "too few points" in verdict.numbers) == ("undecided", True)


def test_groups_vote_and_the_counts_are_shown() -> None:
    rows = [{**r, "model": m} for m, rs in {"a": RISING, "b": RISING, "c": FALLING}.items() for r in rs]
    verdict = check(TREND | {"expect": "rises", "within": "model"}, rows)
    assert verdict.word == "confirmed"
    assert "2 confirmed, 1 contradicted of 3 groups" in verdict.numbers
    tied = check(TREND | {"expect": "rises", "within": "model", "select": {"model": ["a", "c"]}}, rows)
    assert tied.word == "undecided"


def test_one_group_of_many_is_no_majority() -> None:
    rows = [{**r, "model": m} for m, rs in {"a": RISING, "b": LEVEL, "c": LEVEL}.items() for r in rs]
    assert check(TREND | {"expect": "rises", "within": "model"}, rows).word == "undecided"


def test_seeds_are_averaged_before_the_trend() -> None:
    rows = curve({32: 0.1, 64: 0.3}, seed=0) + curve({32: 0.3, 64: 0.7}, seed=1)
    assert "0.2 at batch 32 to 0.5 at 64" in check(TREND | {"expect": "rises"}, rows).numbers


RATIO = {"rule": "ratio", "metric": "loss", "of": {"workers": 2}, "to": {"workers": 1}}


@pytest.mark.parametrize(
    ("two", "expect", "word"),
    [
        (1.5, "higher", "confirmed"),
        (1.5, "lower", "contradicted"),
        (1.5, "same", "contradicted"),
        (0.5, "lower", "confirmed"),
        (1.02, "same", "confirmed"),
        (1.5, "not higher", "contradicted"),
        (1.02, "not higher", "confirmed"),
        (0.5, "not higher", "confirmed"),
        (1.02, "higher", "undecided"),
    ],
)
def test_ratio(two: float, expect: str, word: str) -> None:
    verdict = check(RATIO | {"expect": expect}, curve({1: 1.0, 2: two}, x="workers"))
    assert verdict.word == word
    assert f"{two:.4g} / 1 = {two:.3g}" in verdict.numbers


def test_ratio_without_one_side() -> None:
    assert check(RATIO | {"expect": "same"}, curve({2: 1.0}, x="workers")).word == "undecided"


def learner(workers: int, seconds: float, losses: list[float], **keys: Any) -> Row:
    """A run with an evaluation after each epoch of `seconds`."""
    known = [{"epoch": e, "train_seconds": e * seconds, "loss": y} for e, y in enumerate(losses, start=1)]
    return row(workers=workers, loss=losses[-1], evaluations=known, **keys)


CURVES = {"rule": "curves", "metric": "loss", "of": {"workers": 2}, "to": {"workers": 1}, "expect": "lower"}
# An epoch takes one device 10 s and two devices 5 s, and teaches two devices less.
SLOW_AND_FAST = [learner(1, 10, [0.8, 0.4, 0.2]), learner(2, 5, [0.9, 0.6, 0.4])]


def test_curves_may_be_behind_at_equal_epochs_and_ahead_at_equal_times() -> None:
    epochs = check(CURVES | {"over": "epoch"}, SLOW_AND_FAST)
    assert epochs.word == "contradicted"
    assert "0 of 3 points agree, 3 disagree: 0.9 / 0.8 at epoch 1 to 0.4 / 0.2 at epoch 3" in epochs.numbers
    # One device is known from 10 s on, two are until 15 s; at 15 s one device is halfway from 0.8 to 0.4.
    seconds = check(CURVES | {"over": "train_seconds"}, SLOW_AND_FAST)
    assert seconds.word == "confirmed"
    assert "2 of 2 points agree" in seconds.numbers
    assert "0.6 / 0.8 at train_seconds 10 to 0.4 / 0.6 at train_seconds 15" in seconds.numbers


def test_curves_that_cross_or_never_meet_decide_nothing() -> None:
    crossing = [learner(1, 10, [0.8, 0.4]), learner(2, 10, [0.4, 0.8])]
    assert check(CURVES | {"over": "epoch"}, crossing).word == "undecided"
    apart = [learner(1, 100, [0.8, 0.4]), learner(2, 1, [0.4, 0.8])]
    verdict = check(CURVES | {"over": "train_seconds"}, apart)
    assert (verdict.word, "too few points" in verdict.numbers) == ("undecided", True)


def test_curves_of_one_side_are_averaged_and_seeds_can_vote() -> None:
    rows = [learner(1, 10, [0.5], seed=s) for s in (0, 1, 2)]
    rows += [learner(2, 10, [y], seed=s) for s, y in ((0, 0.4), (1, 0.4), (2, 0.85))]
    over_epochs = CURVES | {"over": "epoch"}
    assert "0.55 / 0.5 at epoch 1" in check(over_epochs, rows).numbers
    assert check(over_epochs, rows).word == "contradicted"
    assert check(over_epochs | {"within": "seed"}, rows).word == "confirmed"


PEAK = {"rule": "local_maximum", "metric": "loss", "over": "batch", "at": 512}


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({384: 1.0, 512: 2.0, 640: 1.1}, "confirmed"),
        ({384: 1.0, 512: 1.05, 640: 1.1}, "contradicted"),
        ({384: 1.0, 512: 1.02, 640: 1.0}, "undecided"),
        ({384: 1.0, 512: 2.0}, "undecided"),
        ({384: 1.0, 640: 2.0}, "undecided"),
    ],
)
def test_local_maximum(values: dict[int, float], word: str) -> None:
    assert check(PEAK, curve(values)).word == word


ORDER = {"rule": "order", "metric": "loss", "expect": "rises"}


@pytest.mark.parametrize(
    ("order", "word", "numbers"),
    [
        (["ddp", "single", {"strategy": "pipeline", "cut": "size"}], "confirmed", "3 of 3 pairs agree"),
        (["single", "ddp", {"strategy": "pipeline", "cut": "size"}], "contradicted", "1 are reversed"),
        (["ddp", "mpi"], "undecided", "within noise"),
        (["ddp", "absent"], "undecided", "too few points"),
    ],
)
def test_order(order: list[Any], word: str, numbers: str) -> None:
    values = {"ddp": 1.0, "mpi": 1.01, "single": 2.0}
    rows = [row(strategy=name, loss=value) for name, value in values.items()]
    rows += [row(strategy="pipeline", cut="size", loss=3.0), row(strategy="pipeline", cut="time", loss=0.1)]
    verdict = check(ORDER | {"order": order}, rows)
    assert verdict.word == word and numbers in verdict.numbers


def test_an_order_has_the_tau_of_each_repetition() -> None:
    # 1, 2, 3 as claimed; then 2, 1, 3, of which one of three pairs is reversed.
    values = {1: (1.0, 2.0, 3.0), 2: (2.0, 1.0, 3.0)}
    rows = [
        row(strategy=name, loss=value, repetition=number)
        for number, own in values.items()
        for name, value in zip(("ddp", "mpi", "single"), own, strict=True)
    ]
    verdict = check(ORDER | {"order": ["ddp", "mpi", "single"]}, rows)
    assert "(0.33 to 1.00 of 2 repetitions)" in verdict.numbers
    assert "repetitions" not in check(ORDER | {"order": ["ddp", "mpi", "single"]}, rows[:3]).numbers


@pytest.mark.parametrize(
    ("expect", "value", "word"),
    [
        ("below", 1.0, "confirmed"),
        ("above", 1.0, "contradicted"),
        ("near", 0.7, "confirmed"),
        ("below", 0.7, "undecided"),
        ("near", 1.0, "contradicted"),
    ],
)
def test_level(expect: str, value: float, word: str) -> None:
    claim = {"rule": "level", "metric": "loss", "expect": expect, "value": value}
    assert check(claim, [row(loss=0.69)]).word == word


def test_occurs_counts_runs_of_every_status() -> None:
    claim = {"rule": "occurs", "metric": "status", "expect": "diverged"}
    assert check(claim, [row(), row(status="diverged")]).word == "confirmed"
    assert check(claim, [row()]).word == "contradicted"
    assert check(claim, [row(status="missing")]).word == "undecided"


def test_untested_gives_its_reason() -> None:
    verdict = check({"rule": "untested", "reason": "one machine"}, [])
    assert (verdict.word, verdict.numbers) == ("undecided", "one machine")


def test_runs_that_do_not_compare_are_left_out() -> None:
    bad = [row(workers=2, loss=9.0, shared_device=True), row(workers=2, loss=9.0) | {"status": "failed"}]
    bad += [row(workers=2, loss=None), row(workers=2, loss=float("nan"))]
    verdict = check(RATIO | {"expect": "same"}, curve({1: 1.0, 2: 1.0}, x="workers") + bad)
    assert verdict.word == "confirmed"


@pytest.mark.parametrize(
    "claim",
    [
        {"rule": "guess"},
        {},
        {"rule": "trend", "metric": "loss"},
        TREND | {"expect": "wobbles"},
        RATIO | {"expect": "wobbles"},
        CURVES | {"over": "epoch", "expect": "wobbles"},
        {"rule": "level", "metric": "loss", "select": {"batch": 32}, "expect": "below", "value": None},
    ],
)
def test_a_claim_that_cannot_be_evaluated_says_so(claim: dict[str, Any]) -> None:
    verdict = check(claim, RISING)
    assert verdict.word == "undecided"
    assert "no rule is called" in verdict.numbers or "cannot be evaluated" in verdict.numbers


def test_every_rule_is_tested_here() -> None:
    assert set(RULES) == {"trend", "ratio", "local_maximum", "order", "level", "occurs", "untested", "curves"}

"""Bench arithmetic on numbers worked by hand, and one real pair of contestants."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import runs
from bench.compare import SLACK, Comparison, ratios, table
from tests.support import ROOT


def test_ratios_are_taken_within_a_round() -> None:
    # The machine was twice as slow in the second round: both contestants were.
    assert ratios([200, 100, 210], [100, 50, 100]) == (2, 2, 2.1)
    with pytest.raises(ValueError):
        ratios([1, 2], [1])


def test_the_median_ratio_counts_and_one_odd_round_does_not() -> None:
    assert Comparison("a", (1.0, 1.1, 9.0), None).median == 1.1
    assert Comparison("a", (1.0, 2.0), None).median == 1.5


@pytest.mark.parametrize(
    ("median", "goal", "met"), [(1.0, 1.0, True), (0.975, 1.0, True), (0.96, 1.0, False), (5.0, None, None)]
)
def test_a_goal_is_met_up_to_the_slack(median: float, goal: float | None, met: bool | None) -> None:
    assert SLACK == 0.03
    assert Comparison("a", (median,) * 7, goal).met is met


def test_the_interval_is_the_bootstraps_and_repeats() -> None:
    assert Comparison("a", (1.2,) * 7, None).interval() == (1.2, 1.2)
    # Of two rounds a resample is (a, a) a quarter of the time, (b, b) another, else their mean.
    assert Comparison("a", (1.0, 2.0), None).interval() == (1.0, 2.0)
    # Of seven rounds the median's 95 % runs from the second smallest to the second largest: a resample's
    # median is the smallest only if four of seven draws are, with probability 0.01.
    wide = Comparison("a", (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6), None)
    assert wide.interval() == (1.1, 1.5)
    assert wide.interval() == wide.interval()


def test_the_table() -> None:
    text = table([Comparison("ours / theirs", (1.0,) * 7, 1.1), Comparison("C(2)", (1.8,) * 7, None)])
    assert text.splitlines()[2:] == [
        "| ours / theirs | 1.00 | 1.00 to 1.00 | 1.10 | no |",
        "| C(2) | 1.80 | 1.80 to 1.80 |  |  |",
    ]


@pytest.mark.slow
def test_a_peer_and_ours_really_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("SCALEGUIDE_MAX_MINUTES", raising=False)
    monkeypatch.setattr(runs, "OUT", tmp_path)
    for result in (
        runs.run_peer("torch_memory.py", "cnn", 128, 12),
        runs.run_scaleguide("single", "cnn", 128, 60),
    ):
        assert result.rate > 0
        assert 0 < result.startup < 120


def test_a_contestant_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(RuntimeError, match="no such model"):
        runs.run_scaleguide("single", "no_such", 128, 60)

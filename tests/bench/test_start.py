"""Sweeps of forked and of spawned ranks are compared cell by cell."""

from __future__ import annotations

from typing import Any

import pytest

from bench.start import METHODS, STRATEGIES, Sweeps, compare, cost_table


def cell(overhead: float, rate: float) -> dict[str, Any]:
    return {"total_seconds": 2.5 + overhead, "train_seconds": 2.5, "samples_per_second": rate}


@pytest.fixture
def sweeps() -> Sweeps:
    forked = [[cell(8.0, 990.0), cell(1.0, 1010.0), cell(3.0, 1000.0)]] * 3
    spawned = [[cell(10.0, 1000.0), cell(8.0, 1000.0), cell(8.0, 1000.0)]] * 3
    return {(s, m): forked if m == "forkserver" else spawned for s in STRATEGIES for m in METHODS}


def test_costs_are_what_a_cell_takes_besides_training(sweeps: Sweeps) -> None:
    assert cost_table(sweeps).splitlines()[2:4] == [
        "| ddp | forkserver | 8.0 s | 2.0 s |",
        "| ddp | spawn | 10.0 s | 8.0 s |",
    ]


def test_forked_ranks_are_held_against_spawned_ones(sweeps: Sweeps) -> None:
    assert [comparison.median for comparison in compare(sweeps)[:3]] == pytest.approx([0.8, 0.25, 1.0])

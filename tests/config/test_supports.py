"""What a strategy's file says of what it supports, and what it may leave away."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from src.config.run_config import Bounds, Supports
from tests.support import ROOT

STRATEGIES = sorted((ROOT / "conf/strategy").glob("*.yaml"))
LEAST = {
    "devices": ["cpu"],
    "workers": {"default": 2, "min": 1, "max": None},
    "microbatches": {"default": 1, "min": 1, "max": 1},
    "shares_batch": True,
    "batchnorm": ["local"],
    "precision": ["fp32"],
}


def test_a_file_may_leave_away_what_its_strategy_cannot_do() -> None:
    supports = Supports.of({"supports": LEAST})
    assert supports.workers == Bounds(default=2, min=1, max=None)
    cannot = (supports.batch_shares, supports.hosts, supports.profiler, supports.checkpoints)
    assert cannot == (False,) * 4 and supports.needs == ()


def test_a_users_own_key_is_left_out() -> None:
    assert Supports.of({"supports": {**LEAST, "gossip": True}}) == Supports.of({"supports": LEAST})


@pytest.mark.parametrize("path", STRATEGIES, ids=lambda path: path.stem)
def test_no_key_of_a_strategy_of_the_projects_is_left_out(path: Path) -> None:
    strategy = yaml.safe_load(path.read_text())
    read = vars(Supports.of(strategy))
    for key, value in strategy["supports"].items():
        assert read[key] == (Bounds(**value) if key in ("workers", "microbatches") else value)

"""Other hosts' times are told by this host's clocks."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from src.launch.cluster import clocks
from src.launch.cluster.clocks import Offset


def test_the_quickest_answer_tells_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    # Asked at 10, answered at 10 + took; the other host reads its clocks, 5 and 100 ahead, halfway but once.
    answers = [(0.4, 0.1), *[(0.2, 0.1)] * 7, (0.6, 0.3)]
    here = iter([(10.0 + after, 20.0 + after) for took, _ in answers for after in (0.0, took)])
    there = iter([(15.0 + passed, 120.0 + passed) for _, passed in answers])
    monkeypatch.setattr(clocks, "read", lambda: next(here))
    found = clocks.compare(lambda: next(there))
    assert (found.wall, found.monotonic, found.uncertain) == pytest.approx((5.0, 100.0, 0.1))


def test_this_host_s_clocks_are_not_ahead_of_themselves() -> None:
    found = clocks.compare(clocks.read)
    assert abs(found.wall) <= max(found.uncertain, 1e-3)
    assert abs(found.monotonic) <= max(found.uncertain, 1e-3)


def test_records_and_timelines_are_put_on_this_host_s_clocks(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(
        json.dumps({"window": [100.0, 110.0], "off_clock": [[101.0, 102.5]], "steps": 7})
    )
    (tmp_path / "timeline.json").write_text(json.dumps([[3, "forward", 0, 50.0, 51.0]]))
    (tmp_path / "steps.csv").write_text("as it was")
    for name in ("record.json", "timeline.json", "steps.csv"):
        clocks.adjust(tmp_path, name, Offset(wall=2.0, monotonic=40.0))
    assert json.loads((tmp_path / "record.json").read_text()) == {
        "window": [98.0, 108.0],
        "off_clock": [[99.0, 100.5]],
        "steps": 7,
    }
    assert json.loads((tmp_path / "timeline.json").read_text()) == [[3, "forward", 0, 10.0, 11.0]]
    assert (tmp_path / "steps.csv").read_text() == "as it was"


def test_both_clocks_are_seconds() -> None:
    wall, monotonic = clocks.read()
    assert abs(wall - time.time()) < 1
    assert abs(monotonic - time.perf_counter()) < 1

"""The network's table on numbers worked by hand: what is expected of a step, and what a link deviates by."""

from __future__ import annotations

import json
from typing import Any

import pytest

from src.measure import network as measured
from src.report import runs as study_runs
from src.report.network import network
from tests.report.conftest import Study

VPN = {"up": {"rate_mbit": 20}, "down": {"rate_mbit": 20}}
LAN = {"up": {"rate_mbit": 1000}, "down": {"rate_mbit": 500}}


def way(
    sender: str, receiver: str, rate: float | None, trip: float, got: float, took: float
) -> dict[str, Any]:
    return {
        **{"from": sender, "to": receiver, "asked": {"rate_mbit": rate, "round_trip_ms": trip}},
        "measured": {"rate_mbit": got, "round_trip_ms": took},
    }


def test_a_link_is_busy_as_long_as_what_it_carries_takes_at_the_rate_it_gives() -> None:
    described = {
        "hosts": {"worker-0": {"link": LAN}, "server-0": {"link": VPN}},
        # 95 % of the rates that were asked for.
        "links": [way("worker-0", "server-0", 20, 20, 19, 21), way("server-0", "worker-0", 20, 20, 19, 22)],
    }
    # 4.75 MB at 19 Mbit/s are 2 s down, a fifth of that up; the wire takes 0.01 s for as much down and up.
    found = measured.facts(described, {"worker-0": (4_750_000, 950_000), "server-0": (950_000, 4_750_000)})
    assert found == {
        "link_rate_asked_mbit": 20,
        "link_rate_mbit": 19,
        "link_round_trip_asked_ms": 20,
        "link_round_trip_ms": 22,
        "wire_seconds": pytest.approx(2.0),
        "wire_seconds_in_turn": pytest.approx(2.4),
    }
    assert measured.facts({}, {"": (1, 1)}) == {}
    unlimited = {
        "hosts": {"worker-0": {"link": {"up": {"rate_mbit": None}, "down": {"rate_mbit": None}}}},
        "links": [way("worker-0", "worker-1", None, 0, 8000, 0.05)],
    }
    # 1 GB at 8 Gbit/s.
    found = measured.facts(unlimited, {"worker-0": (10**9, 0)})
    assert found["wire_seconds"] == pytest.approx(1.0)
    assert found["link_rate_asked_mbit"] is None


LINKED = {
    **{"link_rate_asked_mbit": 20, "link_rate_mbit": 19, "link_round_trip_asked_ms": 40},
    **{"link_round_trip_ms": 40.5, "batches": 50, "payload_bytes": 450e6, "network_bytes": 460e6},
}


def test_a_step_is_expected_to_take_its_parts(empty_study: Study) -> None:
    exchange = {"exchange": {"round_trips": 2, "both_ways": True}}
    in_turn = {"exchange": {"round_trips": 3, "both_ways": False}}
    empty_study.run("alone", batch=64, samples_per_second=320.0, step_seconds_median=0.2)
    empty_study.run("other-work", batch=64, model={"width": 2}, step_seconds_median=9.0)
    empty_study.run("other-cores", batch=64, hardware={"cores_per_device": 2}, step_seconds_median=9.0)
    wire = {"wire_seconds": 100.0, "wire_seconds_in_turn": 150.0}
    empty_study.run(
        "ddp",
        "ddp",
        workers=2,
        options=exchange,
        samples_per_second=128 / 2.5,
        step_seconds_median=0.3,
        **LINKED,
        **wire,
    )
    empty_study.run("ps", "ps", workers=2, options=in_turn, step_seconds_median=3.0, **LINKED, **wire)
    asynchronous = {**exchange, "synchronous": False}
    empty_study.run(
        "few", "async", workers=2, options=asynchronous, step_seconds_median=1.0, **LINKED, **wire
    )
    empty_study.run("cut", "pipeline", workers=2, options=exchange, step_seconds_median=1.0, **LINKED, **wire)
    empty_study.run("here", "ddp", workers=2, options=exchange, step_seconds_median=0.3)
    cells = {name: {} for name in ("alone", "other-work", "other-cores", "ddp", "ps", "few", "cut", "here")}
    runs = study_runs.load(cells, empty_study.directory / "runs")
    rows = {row["cell"]: row for row in network(runs)}
    # The mean, for the median step may have exchanged nothing.
    assert rows["ddp"]["batch_seconds"] == pytest.approx(2.5)
    # 0.2 s for 64 of the 128 samples, 100 s of wire in 50 batches, two round trips of 40.5 ms.
    assert rows["ddp"]["expected_seconds"] == pytest.approx(0.2 + 2.0 + 0.081)
    assert rows["ddp"]["expected_ratio"] == pytest.approx(2.5 / 2.281)
    assert rows["ddp"]["link_utilization"] == pytest.approx(2.0 / 2.5)
    assert rows["ddp"]["compute_share"] == pytest.approx(0.2 / 2.5)
    assert rows["ddp"]["payload_batch_bytes"] == 9e6
    # One direction after the other.
    assert rows["ps"]["expected_seconds"] == pytest.approx(0.2 + 3.0 + 0.1215)
    # Too few steps for a rate, and the median of one worker's is no batch's.
    assert (rows["few"]["batch_seconds"], rows["few"]["expected_ratio"]) == (None, None)
    # Its stages see the whole batch, of which no run alone tells a stage's part.
    assert rows["cut"]["expected_seconds"] is None
    assert rows["cut"]["wire_batch_seconds"] == pytest.approx(2.0)
    assert rows["here"]["expected_seconds"] is None and rows["here"]["link_flag"] is None


@pytest.mark.parametrize(
    ("asked", "got", "trip", "took", "flag"),
    [
        (20, 18.1, 40, 40, False),
        (20, 17.9, 40, 40, True),
        (20, 19, 40, 43.9, False),
        (20, 19, 40, 44.1, True),
        # Half a millisecond is nothing.
        (1000, 950, 0, 0.4, False),
        (1000, 950, 3, 3.6, True),
        (None, 9000, 0, 0.05, False),
        # It is faster than the other, and yet not as asked.
        (1000, 400, 0, 0.05, True),
    ],
)
def test_a_link_that_is_not_as_asked_is_marked(
    asked: float | None, got: float, trip: float, took: float, flag: bool, empty_study: Study
) -> None:
    folder = empty_study.run("ddp", "ddp", workers=2, **LINKED)
    links = [
        way("worker-0", "server-0", 20, 40, 19, 40.5),
        way("server-0", "worker-0", asked, trip, got, took),
    ]
    (folder / "network.json").write_text(json.dumps({"links": links}))
    (row,) = network(study_runs.load({"ddp": {}}, empty_study.directory / "runs"))
    assert row["link_flag"] == flag
    page = empty_study.page()
    assert ("another rate or round trip than asked: ddp" in page) == flag
    assert "measured before training" in page


def test_a_study_without_links_has_no_table_of_them(empty_study: Study) -> None:
    empty_study.run("alone", samples_per_second=320.0)
    assert "measured before training" not in empty_study.page()

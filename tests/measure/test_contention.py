"""What disturbed a run: on counters made by hand, and on real processes that share a core."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from src.machine.devices import usable_cores
from src.measure.arithmetic import DISTURBED, disturbed, probe_changed
from src.measure.contention import ContentionReader, RankReading, Reading, disturbances, facts, fractions
from src.measure.rank_record import RankRecord
from src.measure.summary import disturbance

pytestmark = pytest.mark.timed

WINDOW: dict[int, RankRecord] = {0: {"window": (100.0, 110.0), "off_clock": []}}
BUSY = "while True: pass"


def reading(
    moment: float,
    waited: float = 0.0,
    busy: float = 0.0,
    own: float = 0.0,
    stolen: float = 0.0,
    *,
    switches: int = 0,
    cores: int = 1,
    pid: int = 7,
    complete: bool = True,
    page_ins: int = 0,
) -> Reading:
    counters = RankReading(pid, waited, switches, busy, own, stolen, cores)
    return Reading(moment, {0: counters}, page_ins, complete)


def fraction(*readings: Reading, records: dict[int, RankRecord] = WINDOW) -> float | None:
    return fractions(disturbances(readings, records))["cpu_wait_fraction"]


def test_a_quiet_run_reads_nothing() -> None:
    # It ran for nine of ten seconds, and nobody else did.
    assert fraction(reading(100), reading(110, waited=0.15, busy=9.0, own=9.0)) == 0


def test_a_neighbour_with_a_quarter_of_the_core_disturbs() -> None:
    found = fraction(reading(100), reading(110, waited=3.0, busy=10.0, own=7.5))
    assert found == pytest.approx(0.25)
    assert found > DISTURBED


def test_what_the_run_itself_causes_is_told_apart() -> None:
    # Its sixty threads, or its server on the same core, keep each other waiting: 20 s in ten.
    assert fraction(reading(100), reading(110, waited=20.0, busy=10.0, own=10.0)) == 0
    # A quota lets it stand still for three quarters of the time, in which the core is idle.
    assert fraction(reading(100), reading(110, waited=7.5, busy=2.5, own=2.5)) == 0
    # The same threads with a neighbour: no more than that took.
    assert fraction(reading(100), reading(110, waited=20.0, busy=10.0, own=8.0)) == pytest.approx(0.2)


def test_the_switch_of_emulated_hosts_is_no_neighbour() -> None:
    end = Reading(110, {0: RankReading(7, 2.0, 0, 10.0, 9.5, 0.0, 1, routed=1.5)})
    (found,) = disturbances([reading(100), end], WINDOW)
    assert found.router_fraction == pytest.approx(0.15)
    assert found.cpu_wait_fraction == pytest.approx(0.05)


def test_a_neighbour_that_ran_while_the_rank_slept_disturbed_nobody() -> None:
    assert fraction(reading(100), reading(110, waited=0.1, busy=9.0, own=4.0)) == pytest.approx(0.01)


def test_cores_add_up_to_the_whole_window_at_most() -> None:
    two = reading(110, waited=15.0, busy=20.0, own=6.0, cores=2)
    assert fraction(reading(100, cores=2), two) == 1


def test_the_warm_up_and_pauses_are_left_out() -> None:
    timed: dict[int, RankRecord] = {0: {"window": (100.0, 104.0), "off_clock": [(102.0, 103.0)]}}
    # 4 s waited before the window, 1 s in its first two seconds, 5 s in the pause, 1 s after it, 8 s after.
    waits = {98.0: 0.0, 100.0: 4.0, 102.0: 5.0, 103.0: 10.0, 104.0: 11.0, 106.0: 19.0}
    readings = [reading(moment, waited=waited, busy=waited) for moment, waited in waits.items()]
    (found,) = disturbances(readings, timed)
    assert (found.seconds, found.waited) == (pytest.approx(3.0), pytest.approx(2.0))
    # An interval that is half inside counts half.
    (half,) = disturbances([reading(99), reading(101, waited=1.0, busy=1.0)], timed)
    assert (half.seconds, half.waited) == (pytest.approx(1.0), pytest.approx(0.5))


def test_the_rank_that_waited_most_is_the_runs() -> None:
    quiet = RankReading(8, 0.0, 0, 9.0, 9.0, 0.5, 1)
    start = Reading(100, {**reading(100).ranks, 1: RankReading(8, 0.0, 0, 0.0, 0.0, 0.0, 1)})
    end = Reading(110, {**reading(110, waited=2.0, busy=10.0, own=8.0).ranks, 1: quiet})
    found = disturbances([start, end], {**WINDOW, 1: WINDOW[0]})
    assert fractions(found) == {
        "cpu_wait_fraction": pytest.approx(0.2),
        "steal_fraction": pytest.approx(0.05),
        "router_fraction": None,
    }
    assert [each.rank for each in found] == [0, 1]


def test_an_interval_in_which_a_process_ended_or_was_replaced_does_not_count() -> None:
    first, second = reading(100), reading(105, waited=0.1, busy=5.0, own=5.0)
    # What an ended process used since the last reading is known to nobody, and isn't a neighbour's.
    ended = reading(110, waited=3.0, busy=10.0, own=5.0, complete=False)
    assert fraction(first, second, ended) == 0
    assert fraction(first, second, reading(110, waited=3.0, busy=10.0, own=5.0, pid=9)) == 0


def test_what_was_not_sampled_is_null() -> None:
    assert fraction() is None
    assert fraction(reading(90), reading(95, waited=1.0, busy=1.0)) is None
    assert fraction(reading(100), reading(110), records={0: {}}) is None


def test_the_facts_behind_the_figures() -> None:
    readings = [
        reading(99, page_ins=5),
        reading(101, page_ins=7),
        reading(105, 1.0, 4.0, 3.0, 0.2, switches=40, page_ins=9),
        reading(112, 1.0, 4.0, 3.0, 0.2, switches=40, page_ins=90),
    ]
    found = disturbances(readings, WINDOW)
    told = facts(found, readings, WINDOW)
    assert told["page_ins"] == 2
    assert told["ranks"] == [
        {
            "rank": 0,
            "cpu_wait_fraction": pytest.approx(0.1),
            "steal_fraction": pytest.approx(0.02),
            "all_wait_fraction": pytest.approx(0.1),
            "neighbours_fraction": pytest.approx(0.1),
            "router_fraction": 0.0,
            "involuntary_switches": 40,
            "sampled_seconds": pytest.approx(10.0),
        }
    ]


@pytest.mark.parametrize(
    ("waited", "stolen", "expected"),
    [(0.05, 0.0, False), (0.051, 0.0, True), (0.0, 0.06, True), (None, 0.06, True), (None, 0.0, None)],
)
def test_a_run_is_disturbed_above_the_bound(
    waited: float | None, stolen: float | None, expected: bool | None
) -> None:
    assert disturbed({"cpu_wait_fraction": waited, "steal_fraction": stolen}) is expected
    assert disturbed({}) is None


def test_the_terminal_says_what_disturbed_a_run() -> None:
    assert disturbance({"cpu_wait_fraction": 0.253, "steal_fraction": 0.0}) == (
        "  disturbed: a rank waited 25% of the time for cores that other processes used; "
        "its speed says little"
    )
    both = disturbance({"cpu_wait_fraction": 0.1, "steal_fraction": 0.2})
    assert "waited 10%" in both
    assert "hypervisor took 20%" in both
    assert "waited" not in disturbance({"cpu_wait_fraction": None, "steal_fraction": 0.2})


def test_a_probe_that_changed_within_a_run_is_a_fact_and_so_is_a_missing_one() -> None:
    assert probe_changed([(100.0, 95.0), (100.0, 91.0)]) is False
    assert probe_changed([(100.0, 95.0), (100.0, 89.0)]) is True
    assert probe_changed([(None, 95.0), (100.0, 89.0)]) is True
    assert probe_changed([(100.0, 95.0), (100.0, None)]) is None
    assert probe_changed([]) is None


@pytest.fixture
def start() -> Iterator[Callable[[str], int]]:
    """Starts Python code pinned to the last core, and returns its process id."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str) -> int:
        pin = f"import os, time; os.sched_setaffinity(0, [{usable_cores()[-1]}]); print(flush=True)"
        process = subprocess.Popen(
            [sys.executable, "-c", f"{pin}\n{code}"], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_of_two_busy_processes_on_a_core_one_is_a_neighbour_unless_it_is_the_runs(
    start: Callable[[str], int],
) -> None:
    core = usable_cores()[-1]
    rank, other = start(BUSY), start(BUSY)
    alone, together = ContentionReader(), ContentionReader()
    alone.follow([(0, rank, (core,))], [])
    together.follow([(0, rank, (core,))], [(other, (core,))])
    readings: dict[ContentionReader, list[Reading]] = {alone: [], together: []}
    for _ in range(2):
        for reader, kept in readings.items():
            taken = reader.read()
            assert taken is not None
            kept.append(taken)
        time.sleep(1.5)
    (disturbed_rank,), (own,) = (
        disturbances(kept, {0: {"window": (kept[0].time, kept[1].time), "off_clock": []}})
        for kept in readings.values()
    )
    # Whatever else runs here, the other one had as much of the core as this one, and it waited for that.
    assert disturbed_rank.waited > 0.2 * disturbed_rank.seconds
    assert disturbed_rank.cpu_wait_fraction > 0.1 > DISTURBED
    share = (disturbed_rank.neighbours - own.neighbours) / own.seconds
    assert share == pytest.approx(1 - own.waited / own.seconds, abs=0.15)

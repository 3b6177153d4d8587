"""The hardware trace of real processes: one that works, one that waits, one that ends."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from src.machine.devices import Device
from src.measure import sampler as sampling
from src.measure.sampler import Sampler
from src.run.tables import TRACE_FIELDS

pytestmark = pytest.mark.timed

INTERVAL = 0.1
BUSY = "print(flush=True)\nwhile True: pass"
IDLE = "print(flush=True)\nimport sys; sys.stdin.read()"


@pytest.fixture
def core() -> int:
    return max(os.sched_getaffinity(0))


@pytest.fixture
def start(core: int) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts Python code pinned to one core, and returns once it runs."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\n{code}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def until(sampler: Sampler, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, sampler.rows
        time.sleep(INTERVAL / 2)


def scheduled(pid: int) -> tuple[int, int]:
    """Nanoseconds that a process ran, and that it was ready and had to wait (proc(5), schedstat)."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran), int(waited)


def test_a_busy_process_is_near_one_and_an_idle_one_near_zero(
    start: Callable[[str], subprocess.Popen[str]], core: int, tmp_path: Path
) -> None:
    device = Device("cpu", 0, (core,))
    busy = start(BUSY).pid
    pairs = [(0, busy, device), (1, start(IDLE).pid, device)]
    utilizations: dict[int, list[float]] = {}
    ran, waited = scheduled(busy)
    with Sampler(tmp_path / "trace.csv", INTERVAL) as sampler:
        sampler.follow(pairs)
        until(sampler, lambda: len(sampler.rows) >= 20)
        ran, waited = (after - before for after, before in zip(scheduled(busy), (ran, waited), strict=True))
    # 1 unless others had their turns on the core: the kernel knows how long it let the process wait.
    share = ran / (ran + waited)
    for row in sampler.rows:
        utilizations.setdefault(row["rank"], []).append(row["utilization"])
        assert row["device"] == "cpu0"
        assert row["memory_bytes"] > 1_000_000
    assert sum(utilizations[0]) / len(utilizations[0]) == pytest.approx(share, abs=0.15)
    assert sum(utilizations[1]) / len(utilizations[1]) < 0.05
    with (tmp_path / "trace.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert tuple(written[0]) == TRACE_FIELDS
    assert len(written) == len(sampler.rows)


def test_half_of_a_devices_two_cores_is_a_half(
    start: Callable[[str], subprocess.Popen[str]], core: int, tmp_path: Path
) -> None:
    busy = start(BUSY).pid
    pairs = [(0, busy, Device("cpu", 0, (core,))), (1, busy, Device("cpu", 1, (core, core + 1)))]
    with Sampler(tmp_path / "trace.csv", INTERVAL) as sampler:
        sampler.follow(pairs)
        until(sampler, lambda: len(sampler.rows) >= 20)
    one, two = (sum(row["utilization"] for row in sampler.rows if row["rank"] == rank) for rank in (0, 1))
    assert two == pytest.approx(one / 2, rel=0.15)


def test_a_process_that_ends_ends_its_own_rows_alone(
    start: Callable[[str], subprocess.Popen[str]], core: int, tmp_path: Path
) -> None:
    device = Device("cpu", 0, (core,))
    short, long = start(IDLE), start(IDLE)
    gone = start("print(flush=True)")
    gone.wait(10)
    pairs = [(0, short.pid, device), (1, long.pid, device), (2, gone.pid, device)]
    with Sampler(tmp_path / "trace.csv", INTERVAL) as sampler:
        sampler.follow(pairs)
        until(sampler, lambda: {row["rank"] for row in sampler.rows} == {0, 1})
        short.kill()
        short.wait()
        ended = time.time()
        until(sampler, lambda: sum(row["time"] > ended + INTERVAL for row in sampler.rows) >= 3)
    assert {row["rank"] for row in sampler.rows if row["time"] > ended + INTERVAL} == {1}


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_trace_that_cannot_be_written_stops_no_run(core: int, tmp_path: Path) -> None:
    with Sampler(tmp_path / "no" / "trace.csv", INTERVAL) as sampler:
        sampler.follow([(0, os.getpid(), Device("cpu", 0, (core,)))])


def test_helpers_cpu_seconds_add_up_and_stay_when_one_has_died(
    start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    busy, idle = start(BUSY), start(IDLE)
    with Sampler(tmp_path / "trace.csv", INTERVAL) as sampler:
        sampler.follow([], [busy.pid, idle.pid])
        until(sampler, lambda: sampler.helper_seconds and sampler.helper_seconds[-1][1] > 0.3)
        busy.kill()
        busy.wait()
        seen = len(sampler.helper_seconds)
        until(sampler, lambda: len(sampler.helper_seconds) >= seen + 3)
    seconds = [used for _, used in sampler.helper_seconds]
    assert seconds == sorted(seconds)
    assert seconds[-1] == seconds[-2] > 0.3
    assert sampler.rows == []


def test_a_sample_has_the_counters_of_ranks_beside_those_of_the_runs_other_processes(
    start: Callable[[str], subprocess.Popen[str]], core: int, tmp_path: Path
) -> None:
    rank, helper = start(IDLE), start(BUSY)
    with Sampler(tmp_path / "trace.csv", INTERVAL) as sampler:
        sampler.follow([(0, rank.pid, Device("cpu", 0, (core,)))], [helper.pid], [(helper.pid, (core,))])
        until(sampler, lambda: bool(sampler.readings) and sampler.readings[-1].ranks[0].own > 0.3)
        assert all(reading.complete for reading in sampler.readings)
        helper.kill()
        helper.wait()
        until(sampler, lambda: not all(reading.complete for reading in sampler.readings))
    own = [reading.ranks[0].own for reading in sampler.readings]
    assert own == sorted(own)
    # Once, and what it has used stays the run's.
    assert [reading.complete for reading in sampler.readings].count(False) == 1
    assert sampler.readings[-1].ranks[0].waited < sampler.readings[-1].ranks[0].busy


class Powercap:
    """The kernel's counters of energy, in a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def zone(self, place: str, name: str, joules: float, most: float = 1000.0) -> None:
        zone = self.folder / f"intel-rapl:{place}"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
        (zone / "max_energy_range_uj").write_text(f"{round(most * 1e6)}\n")


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Powercap:
    monkeypatch.setattr(sampling, "RAPL", tmp_path / "powercap")
    return Powercap(tmp_path / "powercap")


@pytest.fixture
def idle_sampler(tmp_path: Path) -> Sampler:
    """One whose thread doesn't run: the test says what time it is."""
    return Sampler(tmp_path / "trace.csv", INTERVAL)


def test_power_is_that_of_the_packages_without_what_contains_them_or_is_contained(
    powercap: Powercap, idle_sampler: Sampler
) -> None:
    for seconds in (0, 2):
        powercap.zone("0", "package-0", 100 + 20 * seconds)
        powercap.zone("0:0", "core", 50 + 15 * seconds)
        powercap.zone("1", "package-1", 300 + 30 * seconds)
        powercap.zone("2", "psys", 900 + 80 * seconds)
        watts = idle_sampler._package_power(10.0 + seconds)
    assert watts == pytest.approx(50)


def test_packages_are_found_past_the_tenth(powercap: Powercap, idle_sampler: Sampler) -> None:
    for seconds in (0, 1):
        powercap.zone("10", "package-0", 7 * seconds)
        watts = idle_sampler._package_power(float(seconds))
    assert watts == pytest.approx(7)


def test_a_packages_counter_that_wraps_goes_on_from_its_own_end(
    powercap: Powercap, idle_sampler: Sampler
) -> None:
    for seconds, first, second in ((0, 995.0, 100.0), (1, 5.0, 120.0)):
        powercap.zone("0", "package-0", first, most=1000.0)
        powercap.zone("1", "package-1", second, most=4000.0)
        watts = idle_sampler._package_power(float(seconds))
    # (1000 - 995) + 5 joules, and 20.
    assert watts == pytest.approx(30)


def test_psys_alone_is_no_packages_power(powercap: Powercap, idle_sampler: Sampler) -> None:
    for seconds in (0, 1):
        powercap.zone("0", "psys", 80.0 * seconds)
        assert idle_sampler._package_power(float(seconds)) is None

"""The kernel's counters, on a /proc written by hand, and those of a real process."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from src.machine import counters
from src.machine.counters import ProcessTimes, core_times, pages_read_in


class Proc:
    """A /proc with one process, 7."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def thread(self, number: int, ran: int, waited: int, switches: int, core: int, state: str = "S") -> None:
        """`ran` and `waited` are milliseconds."""
        folder = self.root / f"7/task/{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"{ran}000000 {waited}000000 5\n")
        (folder / "status").write_text(
            f"Name:\tx\nState:\t{state}\nvoluntary_ctxt_switches:\t900\n"
            f"nonvoluntary_ctxt_switches:\t{switches}\n"
        )
        # The name may hold spaces and brackets; the core is the 39th field.
        (folder / "stat").write_text(f"{number} (a) b) S {' '.join(['0'] * 35)} {core} 0 0\n")

    def ends(self, number: int) -> None:
        shutil.rmtree(self.root / f"7/task/{number}")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setattr(counters, "PROC", str(tmp_path))
    return Proc(tmp_path)


def test_all_threads_count_and_one_that_has_ended_with_its_last_sample(proc: Proc) -> None:
    process = ProcessTimes(7)
    proc.thread(7, ran=100, waited=10, switches=1, core=0)
    proc.thread(8, ran=2000, waited=300, switches=20, core=1)
    times = process.read()
    assert times is not None
    assert (times.ran, times.waited, times.switches) == (pytest.approx(2.1), pytest.approx(0.31), 21)
    proc.ends(8)
    proc.thread(7, ran=150, waited=30, switches=2, core=0)
    times = process.read()
    assert times is not None
    assert (times.ran, times.waited, times.switches) == (pytest.approx(2.15), pytest.approx(0.33), 22)
    # A new thread has the number of the old one.
    proc.thread(8, ran=5, waited=1, switches=1, core=1)
    times = process.read()
    assert times is not None
    assert (times.ran, times.waited, times.switches) == (pytest.approx(2.155), pytest.approx(0.331), 23)


def test_where_a_thread_ran_is_where_it_was_last_seen(proc: Proc) -> None:
    process = ProcessTimes(7, by_core=True)
    proc.thread(7, ran=100, waited=0, switches=0, core=0)
    process.read()
    proc.thread(7, ran=400, waited=0, switches=0, core=3)
    process.read()
    assert process.ran_on == {0: pytest.approx(0.1), 3: pytest.approx(0.3)}


def test_a_process_has_ended_when_it_is_a_zombie_or_gone(proc: Proc) -> None:
    process = ProcessTimes(7)
    proc.thread(7, ran=100, waited=0, switches=0, core=0)
    process.read()
    assert process.alive
    proc.thread(7, ran=100, waited=0, switches=0, core=0, state="Z")
    process.read()
    assert not process.alive
    proc.ends(7)
    times = process.read()
    assert not process.alive
    assert times is not None
    assert times.ran == pytest.approx(0.1)


def test_a_kernel_without_schedstat_gives_nothing(proc: Proc) -> None:
    assert ProcessTimes(7).read() is None
    assert core_times() == {}
    assert pages_read_in() is None


def test_a_core_is_idle_while_it_waits_for_a_disk_too(proc: Proc) -> None:
    tick = 1 / os.sysconf("SC_CLK_TCK")
    lines = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 400 50 6 7 8 0 0\ncpu11 0 0 0 7 0 0 0 9 0 0\nintr 1 2\n"
    (proc.root / "stat").write_text(lines)
    (proc.root / "vmstat").write_text("pgfault 5\npgmajfault 471\n")
    cores = core_times()
    assert cores.keys() == {0, 11}
    assert cores[0].idle == pytest.approx(450 * tick)
    assert (cores[0].stolen, cores[11].stolen) == (pytest.approx(8 * tick), pytest.approx(9 * tick))
    assert pages_read_in() == 471


def test_a_second_threads_work_is_seen() -> None:
    process = ProcessTimes(os.getpid())
    before = process.read()
    used: list[float] = []

    def work() -> None:
        import time

        while time.thread_time() < 0.2:
            pass
        used.append(time.thread_time())
        process.read()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    after = process.read()
    assert before is not None
    assert after is not None
    assert after.ran - before.ran >= 0.2

"""A device that is slowed down by a cgroup's quota is as slow as that, and nothing is left of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from src.machine import cgroups, quota

pytestmark = pytest.mark.timed


@pytest.mark.parametrize(
    ("speed", "cores", "expected"),
    [
        (0.5, 1, (5_000, 10_000)),
        (0.25, 2, (5_000, 10_000)),
        # 0.5 ms of 10 are fewer than the kernel takes: 1 ms of 20.
        (0.05, 1, (1_000, 20_000)),
    ],
)
def test_quota_and_period(speed: float, cores: int, expected: tuple[int, int]) -> None:
    assert quota.quota_of(speed, cores) == expected


def test_a_longer_period_has_a_longer_part() -> None:
    assert quota.quota_of(0.05, 1, 100_000) == (5_000, 100_000)


@pytest.fixture
def groups() -> Iterator[quota.Groups]:
    try:
        control_groups = quota.find()
    except quota.NotAllowed as error:
        pytest.skip(str(error))
    yield control_groups
    quota.remove()
    assert not list(control_groups.folder.glob(f"{quota.PREFIX}{os.getpid()}-*"))


def used(environment: dict[str, str], then: str = "") -> float:
    """Share of the time that a process which never waits has run, its quota begun and something done then."""
    code = (
        f"import time; from src.machine import quota; quota.join(); quota.apply(); {then}\n"
        "begun, wall = time.process_time(), time.perf_counter()\n"
        "while time.perf_counter() < wall + 1: pass\n"
        "print((time.process_time() - begun) / (time.perf_counter() - wall))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(completed.stdout)


@pytest.mark.parametrize(
    "speed",
    [
        pytest.param(0.5, marks=pytest.mark.slow),
        pytest.param(0.25, marks=pytest.mark.slow),
        pytest.param(0.05, marks=pytest.mark.slow),
    ],
)
def test_a_process_has_that_part_of_the_time(groups: quota.Groups, speed: float) -> None:
    environment = quota.prepare([1.0, speed], 10, 1, 1)
    # It never has more; on a busy machine it may have less.
    shares = [used(environment) for _ in range(3)]
    assert max(shares) == pytest.approx(speed, rel=0.2)


@pytest.mark.parametrize("then", ["quota.lift()", pytest.param("quota.join()", marks=pytest.mark.slow)])
def test_it_has_all_of_it_once_that_ends_or_another_takes_its_place(groups: quota.Groups, then: str) -> None:
    environment = quota.prepare([1.0, 0.25], 10, 1, 1)
    assert max(used(environment, then) for _ in range(3)) > 0.5


def test_a_slowed_rank_that_polls_leaves_its_quota_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(quota.CGROUP, "its group")
    begun, wall = time.process_time(), time.perf_counter()
    for _ in range(200):
        quota.give_way()
    assert time.process_time() - begun < 0.5 * (time.perf_counter() - wall)


def test_full_speed_needs_no_group() -> None:
    assert quota.prepare([1.0, 0.5], 10, 0, 1) == {}
    assert quota.prepare(None, 10, 0, 1) == {}


def test_what_a_killed_job_left_goes_with_the_next(groups: quota.Groups) -> None:
    make = "from src.machine import quota; quota.prepare([0.5], 10, 0, 1)"
    code = f"import os; {make}; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    before = set(groups.folder.glob(f"{quota.PREFIX}*"))
    assert before
    quota.prepare([0.5], 10, 0, 1)
    assert not before & set(groups.folder.glob(f"{quota.PREFIX}*"))


def test_version_2_has_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/job\n")
    folder = tmp_path / "mount" / "job"
    folder.mkdir(parents=True)
    (folder / "cgroup.controllers").write_text("cpu memory\n")
    monkeypatch.setattr(cgroups, "PROC", tmp_path)
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path / "mount")
    environment = quota.prepare([0.25], 10, 0, 1)
    assert (folder / "cgroup.subtree_control").read_text() == "+cpu"
    monkeypatch.setenv(quota.CGROUP, environment[quota.CGROUP])
    monkeypatch.setenv(quota.QUOTA, environment[quota.QUOTA])
    quota.join()
    quota.apply()
    group = Path(environment[quota.CGROUP])
    assert (group / "cpu.max").read_text() == "2500 10000"
    assert (group / "cgroup.procs").read_text() == str(os.getpid())


def test_where_none_may_be_made_it_is_said_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("4:memory:/\n1:cpu:/job\n")
    monkeypatch.setattr(cgroups, "PROC", tmp_path)
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path / "nowhere")
    with pytest.raises(quota.NotAllowed, match=r"nowhere.*No such file"):
        quota.find()

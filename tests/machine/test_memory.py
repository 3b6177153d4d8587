"""The kernel's counters tell who was killed for want of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from src.machine import cgroups
from src.machine.memory import MemoryKills, memory_limit

V1 = "9:memory:/job\n0::/\n"
V2 = "0::/job\n"


@pytest.mark.parametrize(
    ("cgroup", "counter"),
    [
        (V1, "sys/memory/job/memory.oom_control"),
        (V1, "sys/memory/memory.oom_control"),
        (V2, "sys/job/memory.events"),
        (V2, "sys/memory.events"),
        (V2, "proc/vmstat"),
        ("", "proc/vmstat"),
        (None, "proc/vmstat"),
    ],
)
def test_each_kill_is_told_once_by_the_nearest_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str | None, counter: str
) -> None:
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path / "sys")
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    for path, text in (("proc/self/cgroup", cgroup), ("proc/vmstat", "oom_kill 7\n"), (counter, "")):
        if text is not None:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

    def count(number: int) -> None:
        (tmp_path / counter).write_text(f"oom 9\nunder_oom 0\noom_kill {number}\noom_group_kill 5\n")

    count(2)
    kills = MemoryKills()
    assert not kills.has_another()
    count(4)
    assert [kills.has_another() for _ in range(3)] == [True, True, False]
    # One that was told of is no reason for a later end.
    (tmp_path / counter).unlink()
    assert not kills.has_another()


def test_where_nothing_counts_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    monkeypatch.setattr(cgroups, "PROC", tmp_path)
    assert not MemoryKills().has_another()


def test_the_least_limit_of_all_levels_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path / "sys")
    monkeypatch.setattr(cgroups, "PROC", tmp_path)
    files = {
        "self/cgroup": "0::/user/job\n",
        "sys/user/job/memory.max": "max\n",
        "sys/user/memory.max": f"{1 << 28}\n",
        "sys/memory.max": f"{1 << 29}\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert memory_limit() == 1 << 28

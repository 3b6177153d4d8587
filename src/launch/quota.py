"""Devices of unequal speed, emulated: a rank's processor time is cut by a cgroup's CPU quota.

A rank with a speed below 1 runs in a cgroup of its own, under version 1 (`cpu.cfs_quota_us`) or 2
(`cpu.max`), whichever the system has. Of each period it may run `speed` of the time on its cores, and is
stopped for the rest; the quota begins with the training, so that imports take no longer. The shorter the
period, the more often it begins with cold caches.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# The kernel takes no shorter quota; slower devices have a longer period.
LEAST_MICROSECONDS = 1_000
CGROUP, QUOTA = "SCALEGUIDE_CGROUP", "SCALEGUIDE_QUOTA"
MOUNT, PROC = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
PREFIX = "scaleguide-"
NAP_SECONDS = 2e-4


def quota(speed: float, cores: int, period: int = 10_000) -> tuple[int, int]:
    """(quota, period) in microseconds, for a speed of 0 to 1 on so many cores."""
    period = max(period, round(LEAST_MICROSECONDS / (speed * cores)))
    return max(LEAST_MICROSECONDS, round(speed * cores * period)), period


class NotAllowed(Exception):
    """No cgroup can be made."""


@dataclass(frozen=True)
class Groups:
    """Where this process may make cgroups with a CPU quota."""

    folder: Path
    version: int

    def make(self, name: str) -> Path:
        """A new group.

        Raises:
            OSError: if that isn't allowed.
        """
        made = self.folder / f"{PREFIX}{os.getpid()}-{name}"
        if self.version == 2:
            (self.folder / "cgroup.subtree_control").write_text("+cpu")
        made.mkdir()
        return made


def find() -> Groups:
    """By this process's own group.

    Raises:
        NotAllowed: if there is no such place; with the reason.
    """
    reason = "no cgroup has a CPU controller here"
    for line in PROC.read_text().splitlines() if PROC.exists() else ():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            # The mount may show the group of a container as its root.
            folders, version = (MOUNT / f"cpu{path}", MOUNT / "cpu"), 1
        elif not controllers:
            folders, version = (MOUNT / path.lstrip("/"), MOUNT), 2
        else:
            continue
        for folder in folders:
            groups = Groups(folder, version)
            if version == 2 and not (folder / "cgroup.controllers").exists():
                continue
            try:
                groups.make("try").rmdir()
            except OSError as error:
                reason = f"{error.filename or folder}: {error.strerror}"
            else:
                return groups
    raise NotAllowed(f"needs cgroups with a CPU quota, which isn't allowed here ({reason}); try as root")


def told(hardware: Mapping[str, Any], rank: int, cores: int) -> dict[str, str]:
    """The environment of a rank whose device is to be slower; its group is made for it."""
    speeds = hardware["speeds"]
    if speeds is None or speeds[rank] == 1:
        return {}
    groups = find()
    _forget_others(groups.folder)
    with contextlib.suppress(FileExistsError):
        groups.make(str(rank))
    limit, period = quota(speeds[rank], cores, round(1000 * hardware["speed_period_ms"]))
    return {
        CGROUP: str(groups.folder / f"{PREFIX}{os.getpid()}-{rank}"),
        QUOTA: f"{groups.version} {limit} {period}",
    }


def join() -> None:
    """A rank goes into the group that it was told of; as fast as any, also where another one was before."""
    if CGROUP in os.environ:
        end()
        Path(os.environ[CGROUP], "cgroup.procs").write_text(str(os.getpid()))


def begin() -> None:
    """From here on the rank is as slow as its device is to be."""
    if CGROUP in os.environ:
        version, limit, period = (int(word) for word in os.environ[QUOTA].split())
        set_quota(Path(os.environ[CGROUP]), version, limit, period)


def end() -> None:
    """From here on the rank is as fast as any."""
    if CGROUP in os.environ:
        version, _, period = (int(word) for word in os.environ[QUOTA].split())
        set_quota(Path(os.environ[CGROUP]), version, None, period)


def give_way() -> None:
    """Between two looks at what a rank waits for; a slowed one sleeps, for polling would use up its quota."""
    if CGROUP in os.environ:
        time.sleep(NAP_SECONDS)
    else:
        os.sched_yield()


def set_quota(group: Path, version: int, limit: int | None, period: int) -> None:
    """Changes a group's, `None` being no limit; it may run while it changes."""
    if version == 2:
        (group / "cpu.max").write_text(f"{'max' if limit is None else limit} {period}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(period))
        (group / "cpu.cfs_quota_us").write_text(str(-1 if limit is None else limit))


def remove() -> None:
    """The groups of this process, whose ranks have ended."""
    with contextlib.suppress(NotAllowed):
        _remove(find().folder, lambda pid: pid == os.getpid())


def _forget_others(folder: Path) -> None:
    """Groups of processes that were killed."""
    _remove(folder, lambda pid: not psutil.pid_exists(pid))


def _remove(folder: Path, whose: Callable[[int], bool]) -> None:
    for group in folder.glob(f"{PREFIX}*-*"):
        if whose(int(group.name.removeprefix(PREFIX).partition("-")[0])):
            # One that was just left may still count as busy; the next run's turn comes.
            with contextlib.suppress(OSError):
                group.rmdir()

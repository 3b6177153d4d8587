"""Emulate devices of unequal speed: limit a rank's processor time by a cgroup's CPU quota.

A rank with a speed below 1 runs in a cgroup of its own, under version 1 (`cpu.cfs_quota_us`) or 2
(`cpu.max`), whichever the system has. In each period it may run for `speed` of the time on its cores, and is
stopped for the rest. The quota begins with the training, so that imports take no longer. With a
shorter period the rank begins more often with cold caches.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from src.machine import cgroups

# The kernel accepts no shorter quota; slower devices have a longer period.
LEAST_MICROSECONDS = 1_000
# Environment variables of a slowed rank: its cgroup's folder; version, quota and period of that.
CGROUP, QUOTA = "SCALEGUIDE_CGROUP", "SCALEGUIDE_QUOTA"
PREFIX = "scaleguide-"
# A slowed rank sleeps as long as this between two polls.
NAP_SECONDS = 2e-4


def quota_of(speed: float, cores: int, period: int = 10_000) -> tuple[int, int]:
    """Return (quota, period) in microseconds, for a speed between 0 and 1 on `cores` cores."""
    period = max(period, round(LEAST_MICROSECONDS / (speed * cores)))
    return max(LEAST_MICROSECONDS, round(speed * cores * period)), period


class NotAllowed(Exception):
    """The error where no cgroup can be made; its text has the reason."""


@dataclass(frozen=True)
class Groups:
    """A folder of cgroup version 1 or 2 in which this process may make cgroups with a CPU quota."""

    folder: Path
    version: int

    def make(self, name: str) -> Path:
        """Make a new cgroup and return its folder; raise `OSError` if that isn't allowed, or it exists."""
        made = self.folder / f"{PREFIX}{os.getpid()}-{name}"
        if self.version == 2:
            (self.folder / "cgroup.subtree_control").write_text("+cpu")
        made.mkdir()
        return made


def find() -> Groups:
    """Find a folder for new cgroups, by this process's own cgroup; raise `NotAllowed` if there is none."""
    reason = "no cgroup has a CPU controller here"
    for version, folders in cgroups.own("cpu"):
        for folder in (folders[0], folders[-1]):
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


def beginning() -> str:
    """Return how the paths of this process's cgroups begin; raise `NotAllowed` if it can make none."""
    return str(find().folder / f"{PREFIX}{os.getpid()}-")


def prepare(speeds: Sequence[float] | None, period_ms: float, rank: int, cores: int) -> dict[str, str]:
    """Make the cgroup of a rank with a slowed device; return the environment variables that name it.

    There are none for a device at full speed.

    Raises:
        NotAllowed: if no cgroup can be made.
    """
    if speeds is None or speeds[rank] == 1:
        return {}
    groups = find()
    # Parents that were killed may have left some.
    _remove(groups.folder, lambda pid: not psutil.pid_exists(pid))
    with contextlib.suppress(FileExistsError):
        groups.make(str(rank))
    limit, period = quota_of(speeds[rank], cores, round(1000 * period_ms))
    return {
        CGROUP: str(groups.folder / f"{PREFIX}{os.getpid()}-{rank}"),
        QUOTA: f"{groups.version} {limit} {period}",
    }


def join() -> None:
    """Move this rank into the cgroup that its environment names, without a limit yet."""
    if CGROUP in os.environ:
        lift()
        Path(os.environ[CGROUP], "cgroup.procs").write_text(str(os.getpid()))


def apply() -> None:
    """Limit this rank to its device's speed from here on, if that is below 1."""
    if CGROUP in os.environ:
        version, limit, period = (int(word) for word in os.environ[QUOTA].split())
        set_quota(Path(os.environ[CGROUP]), version, limit, period)


def lift() -> None:
    """Let this rank run at full speed from here on."""
    if CGROUP in os.environ:
        version, _, period = (int(word) for word in os.environ[QUOTA].split())
        set_quota(Path(os.environ[CGROUP]), version, None, period)


class Limit:
    """A listener to a rank's record that slows the rank while it trains."""

    def on_start(self) -> None:
        """Limit the rank to its device's speed."""
        apply()

    def on_steps(self, steps: int) -> None:
        """Do nothing."""

    def on_finish(self) -> None:
        """Lift the limit."""
        lift()


def give_way() -> None:
    """Yield the processor between two polls of an event.

    A slowed rank sleeps, for polling would use up its quota.
    """
    if CGROUP in os.environ:
        time.sleep(NAP_SECONDS)
    else:
        os.sched_yield()


def set_quota(group: Path, version: int, limit: int | None, period: int) -> None:
    """Set the quota of a cgroup: microseconds in each period, `None` for no limit."""
    if version == 2:
        (group / "cpu.max").write_text(f"{'max' if limit is None else limit} {period}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(period))
        (group / "cpu.cfs_quota_us").write_text(str(-1 if limit is None else limit))


def remove() -> None:
    """Remove the cgroups that this process has made, once its ranks have ended."""
    with contextlib.suppress(NotAllowed):
        _remove(find().folder, lambda pid: pid == os.getpid())


def _remove(folder: Path, is_to_go: Callable[[int], bool]) -> None:
    for group in folder.glob(f"{PREFIX}*-*"):
        if is_to_go(int(group.name.removeprefix(PREFIX).partition("-")[0])):
            # A cgroup that was just left may still count as busy; a later run removes it.
            with contextlib.suppress(OSError):
                group.rmdir()
